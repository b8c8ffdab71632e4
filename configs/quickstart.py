"""Does chunk-level reinforcement (IPA) lift a small MoE policy on shell tasks? Expect: clearly.
python -m ale_jax.launch --config=configs/quickstart.py --workdir=runs/quickstart

A mixture of experts with 8 experts learns from oracle transcripts until it solves about half of
unseen tasks, and then from its own attempts in sandboxes. Expect it to solve 88 to 96 % of the
evaluation tasks at the end, after 5 to 12 minutes, and none of the held-out families.
Hardware: two CPU cores; no accelerator.
"""

from ml_collections import ConfigDict

from ale_jax.config.run import RunConfig
from ale_jax.configs import algorithms
from ale_jax.envs.shell.families import HELD_OUT_FAMILIES


def get_config(algorithm: str = "ipa") -> ConfigDict:
    """algorithm: one of configs/algorithms.py."""
    c = ConfigDict(RunConfig().to_json())
    c.name = "quickstart" if algorithm == "ipa" else f"quickstart_{algorithm}"

    c.rl.update(steps=120, groups_per_step=8, group_size=4, alpha=1.0)
    c.rl_optimizer.update(name="muon", learning_rate=5e-4, muon_learning_rate=0.0025)
    c.rl_optimizer.update(warmup_ratio=0.03, decay_ratio=1.0)
    c.rl.update(algorithms.rl(algorithm))
    c.algo.update(algorithms.named(algorithm))
    # Failures are weighted by 0.1 with every algorithm, because every algorithm that was measured
    # reaches a higher success with this weight (docs/experiments.md, `failures`). A balance weighs
    # them itself.
    if c.algo.advantage.balance == "none":
        c.algo.loss.negative_weight = 0.1
    c.critics.update(algorithms.critics(algorithm))
    c.critics.optimizer.update(name="muon", learning_rate=1e-3, muon_learning_rate=0.005)
    c.critics.optimizer.update(warmup_ratio=0.03, decay_ratio=1.0)

    # The families that a policy of this size learns within minutes; config and rename take longer.
    # Two of them take longest, and come up as often as the other four together.
    c.worlds.train = (
        {"world": "shell", "families": ("trail", "log", "lookup", "sort")},
        {"world": "shell", "families": ("count", "script")},
    )
    c.worlds.held_out = ({"world": "shell", "families": HELD_OUT_FAMILIES},)
    c.eval.update(tasks=240, held_out_tasks=64)

    # Chunks with errors are not masked, because a script can only be repaired after a call has
    # shown how it fails.
    c.warm_start.update(
        transcripts_per_family=192, rows_per_step=8, max_steps=400, target_success=0.45
    )
    c.warm_start_optimizer.update(name="muon", learning_rate=5e-3, muon_learning_rate=0.02)
    c.warm_start_optimizer.warmup_ratio = 0.05

    c.model.update(width=128, num_layers=3, num_heads=4, num_kv_heads=2, head_width=32)
    c.model.update(mlp_width=384, dense_layers=(0, 1), max_positions=2048)
    c.model.update(num_experts=8, experts_per_token=2, expert_width=192)
    c.tokenizer.vocab_size = 736

    c.agent.turns = 10
    c.rollout.update(actors=2, episodes_per_actor=10, max_reply_tokens=64)
    c.engine.update(max_sequences=20, max_sequence_length=384, decode_steps=4)
    c.engine.update(prefill_tokens=(32, 128), prefill_rows=1, prefill_budget=512)
    c.engine.update(page_tokens=16, pages=20 * 384 // 16)
    c.learn.update(microbatch_rows=4, pack_length=640)
    return c
