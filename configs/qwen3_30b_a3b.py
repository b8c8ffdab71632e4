"""Does IPA improve a policy of the paper's size (ROME)? Expect: unknown; nothing was run yet.
python -m ale_jax.launch --config=configs/qwen3_30b_a3b.py --config.weights=DIR --workdir=runs/rome

DIR: Qwen3-30B-A3B in Hugging Face's layout. Later releases have another rotary base and more
positions: set --config.model.rope_theta and max_positions to the values in their config.json, or
the run will refuse to start.
Hardware: one host with 8 GPUs of 141 GB. Memory by `plan`: 131.9 GiB of each device.
"""

from ml_collections import ConfigDict

from ale_jax.configs import real_model


def get_config(algorithm: str = "ipa") -> ConfigDict:
    """algorithm: one of configs/algorithms.py."""
    c = real_model.qwen3_30b_a3b(algorithm)
    c.name = "qwen3_30b_a3b"
    c.hardware.update(chip="h200", devices=8)
    c.mesh.update(data=1, fsdp=2, expert=4)
    c.engine.pages = 64 * 64  # for half of the slots at full length
    return c
