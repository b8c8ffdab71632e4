"""Does a small pretrained model learn shell tasks with IPA? Expect: from 44 to 69 % in 40 steps.
python -m ale_jax.launch --config=configs/smollm2_135m.py --config.weights=FILE --workdir=runs/smol

FILE: SmolLM2-135M-Instruct, as a .gguf file or a transformers folder. Reinforcement learning starts
after a short warm start that teaches the format of tool calls. The run was made once, with 4-bit
weights (Q4_1) on an H100 (docs/benchmarks.md). A time limit cut it off after step 50 of 60, so the
figure is that of step 40.
Hardware: one GPU of 80 GB. Memory by `plan`: 9.4 GiB of each device.
"""

from ml_collections import ConfigDict

from ale_jax.configs import real_model


def get_config(algorithm: str = "ipa") -> ConfigDict:
    """algorithm: one of configs/algorithms.py."""
    c = real_model.on_shell_tasks(algorithm)
    c.name = "smollm2_135m"
    c.model.update(width=576, num_layers=30, num_heads=9, num_kv_heads=3, head_width=64)
    c.model.update(mlp_width=1536, rope_theta=100_000.0, max_positions=8192, norm_eps=1e-5)
    c.tokenizer.vocab_size = 49_152
    # Short conversations, high rates and few steps: the model is small.
    c.engine.update(max_sequences=96, max_sequence_length=1024, pages=96 * 1024 // 64)
    c.rollout.update(actors=6, max_reply_tokens=96)
    c.agent.turns = 10
    c.warm_start.update(transcripts_per_family=160, max_steps=40, probe_tasks=56)
    c.warm_start_optimizer.update(learning_rate=1e-4, warmup_ratio=0.125)
    c.rl.steps = 60
    c.rl_optimizer.update(learning_rate=3e-5, warmup_ratio=0.05, decay_ratio=0.0)
    c.eval.update(tasks=140, held_out_tasks=0, every=20)
    return c
