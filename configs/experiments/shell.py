"""Which algorithm improves a small policy most? Expect: the weight of failures decides.
python -m ale_jax.launch --config=configs/experiments/shell.py --workdir=runs/shell

The arms of `python -m benchmarks.experiments` for algorithms, ablations and staleness are this
config with overrides. It has three families of one to five reading commands, and a dense policy
small enough for eighteen runs in three hours. Hardware: two CPU cores; no accelerator.
"""

from ml_collections import ConfigDict

from ale_jax.config.run import RunConfig
from ale_jax.configs import algorithms


def get_config(algorithm: str = "ipa") -> ConfigDict:
    """algorithm: one of configs/algorithms.py."""
    c = ConfigDict(RunConfig().to_json())
    c.name = "shell"

    c.rl.update(steps=60, groups_per_step=8, group_size=8, alpha=1.0)
    c.rl_optimizer.update(name="muon", learning_rate=5e-4, muon_learning_rate=0.0025)
    c.rl_optimizer.update(warmup_ratio=0.08, decay_ratio=1.0)
    c.rl.update(algorithms.rl(algorithm))
    c.algo.update(algorithms.named(algorithm))
    if c.algo.advantage.balance == "none":
        c.algo.loss.negative_weight = 0.1  # as in configs/quickstart.py
    c.critics.update(algorithms.critics(algorithm))
    c.critics.optimizer.update(name="muon", learning_rate=1e-3, muon_learning_rate=0.005)
    c.critics.optimizer.update(warmup_ratio=0.08, decay_ratio=1.0)

    c.worlds.train = ({"world": "shell", "families": ("lane", "log", "lookup")},)
    c.eval.tasks = 240
    c.checkpoint.every = 30

    c.warm_start.update(
        transcripts_per_family=192, rows_per_step=8, max_steps=300, target_success=0.3
    )
    c.warm_start_optimizer.update(name="muon", learning_rate=5e-3, muon_learning_rate=0.02)
    c.warm_start_optimizer.warmup_ratio = 0.07

    c.model.update(width=96, num_layers=3, num_heads=3, num_kv_heads=3, head_width=32)
    c.model.update(mlp_width=288, max_positions=2048)
    c.tokenizer.vocab_size = 736

    c.agent.turns = 8
    c.rollout.update(actors=2, episodes_per_actor=10, max_reply_tokens=64)
    c.engine.update(max_sequences=20, max_sequence_length=384, decode_steps=4)
    c.engine.update(prefill_tokens=(32, 128), prefill_rows=1, prefill_budget=512)
    c.engine.update(page_tokens=16, pages=20 * 384 // 16)
    c.learn.update(microbatch_rows=4, pack_length=640)
    return c
