"""Does IPA improve a policy of the paper's size (ROME)? Expect: unknown; nothing was run yet.
python -m ale_jax.launch --config=configs/qwen3_30b_a3b.py --config.weights=DIR --workdir=runs/rome

DIR: Qwen3-30B-A3B in Hugging Face's layout. Later releases have another rotary base and more
positions: set --config.model.rope_theta and max_positions to the values in their config.json, or
the run will refuse to start.
Hardware: one host with 8 GPUs of 141 GB. Memory by `plan`: 131.9 GiB of each device.
"""

from ml_collections import ConfigDict

from ale_jax.configs import smollm2_135m


def get_config(algorithm: str = "ipa") -> ConfigDict:
    c = smollm2_135m.real_model(algorithm)
    c.name = "qwen3_30b_a3b"
    c.hardware.update(chip="h200", devices=8)
    c.mesh.update(data=1, fsdp=2, expert=4)
    c.model.update(width=2048, num_layers=48, num_heads=32, num_kv_heads=4, head_width=128)
    c.model.update(mlp_width=6144, num_experts=128, experts_per_token=8, expert_width=768)
    c.model.update(qk_norm=True, rope_theta=1e6, norm_eps=1e-6)
    c.model.max_positions = 40_960
    c.model.tie_embeddings = False
    c.tokenizer.vocab_size = 151_936
    c.learn.pack_length = 8192
    c.engine.update(max_sequence_length=8192, pages=64 * 64)  # for half of the slots at full length
    c.engine.dispatch_ahead = True  # one dispatch of delay is little beside replies of this length
    return c
