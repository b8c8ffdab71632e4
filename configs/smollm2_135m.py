"""Does a small pretrained model learn shell tasks with IPA? Expect: from 44 to 69 % in 40 steps.
python -m ale_jax.launch --config=configs/smollm2_135m.py --config.weights=FILE --workdir=runs/smol

FILE: SmolLM2-135M-Instruct, as a .gguf file or a transformers folder. Reinforcement learning starts
after a short warm start that teaches the format of tool calls. The run was made once, with 4-bit
weights (Q4_1) on an H100 (docs/benchmarks.md). A time limit cut it off after step 50 of 60, so the
figure is that of step 40.
Hardware: one GPU of 80 GB. Memory by `plan`: 9.4 GiB of each device.
"""

from ml_collections import ConfigDict

from ale_jax.config.run import RunConfig
from ale_jax.configs import algorithms
from ale_jax.envs.shell.families import HELD_OUT_FAMILIES


def get_config(algorithm: str = "ipa") -> ConfigDict:
    c = real_model(algorithm)
    c.name = "smollm2_135m"
    c.model.update(width=576, num_layers=30, num_heads=9, num_kv_heads=3, head_width=64)
    c.model.update(mlp_width=1536, rope_theta=100_000.0, max_positions=8192, norm_eps=1e-5)
    c.tokenizer.vocab_size = 49_152
    # Short conversations, high rates and few steps: the model is small.
    c.engine.update(max_sequences=96, max_sequence_length=1024, pages=96 * 1024 // 64)
    c.rollout.update(actors=6, max_reply_tokens=96)
    c.agent.turns = 10
    c.warm_start.update(transcripts_per_family=160, max_steps=40, probe_tasks=56)
    c.warm_start_optimizer.update(learning_rate=1e-4, warmup_steps=5)
    c.rl.steps = 60
    c.rl_optimizer.update(learning_rate=3e-5, warmup_steps=3, decay_steps=0)
    c.eval.update(tasks=140, held_out_tasks=0, every=20)
    return c


def real_model(algorithm: str) -> ConfigDict:
    """What the configs of pretrained models share: a dense model, and sizes for one device with
    80 GB and up to a billion weights."""
    c = ConfigDict(RunConfig().to_json())
    c.algo.update(algorithms.named(algorithm))
    c.critics.update(algorithms.critics(algorithm))
    c.critics.optimizer.update(name="muon", learning_rate=1e-3, muon_learning_rate=0.005)
    c.critics.optimizer.update(warmup_steps=5, decay_steps=170)
    c.hardware.update(chip="h100", devices=1)
    c.model.qk_norm = False
    c.learn.update(microbatch_rows=8, pack_length=4096, compute_dtype="bfloat16", remat="layers")
    c.engine.update(
        max_sequences=64, max_sequence_length=4096, decode_steps=8, prefill_tokens=(128, 512)
    )
    c.engine.update(prefill_rows=4, prefill_budget=4096, page_tokens=64, pages=64 * 64)
    c.rollout.update(actors=4, episodes_per_actor=16, max_reply_tokens=512)
    c.agent.turns = 16
    c.worlds.train_families = ("trail", "count", "script", "log", "lookup", "sort", "config")
    c.worlds.held_out_families = HELD_OUT_FAMILIES
    c.eval.update(tasks=240, held_out_tasks=64)
    c.warm_start.update(transcripts_per_family=224, max_steps=50, target_success=0.2)
    c.warm_start_optimizer.update(name="adamw", learning_rate=1e-5, warmup_steps=20)
    c.rl.update(steps=500, groups_per_step=16, group_size=8, alpha=1.0)
    c.rl.update(algorithms.rl(algorithm))
    c.rl_optimizer.update(name="adamw", learning_rate=1e-6, warmup_steps=10, decay_steps=500)
    # As in the papers; the 0.1 of the quickstart was measured on a policy of its size alone.
    c.algo.loss.negative_weight = 1.0
    if c.algo.loss.kind != "vanilla":  # vanilla does not use pi_old
        c.algo.old_logp = "generating"
    return c
