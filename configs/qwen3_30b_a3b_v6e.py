"""Does the paper's model train on a TPU v6e-64, 64 chips? Expect: it fits; nothing was run yet.
python -m ale_jax.launch --config=configs/qwen3_30b_a3b_v6e.py --config.weights=DIR --workdir=...

Like configs/qwen3_30b_a3b.py, with experts, heads and feed-forward blocks sharded over the four
chips of a host, each of which samples by itself, and with the sampler's weights in eight bits.
Hardware: Cloud TPU v6e-64. Memory by `plan`: 29.9 GiB of each device.
"""

from ml_collections import ConfigDict

from ale_jax.configs import real_model


def get_config(algorithm: str = "ipa") -> ConfigDict:
    """algorithm: one of configs/algorithms.py."""
    c = real_model.qwen3_30b_a3b(algorithm)
    c.name = "qwen3_30b_a3b_v6e"
    c.hardware.update(chip="v6e", devices=64, devices_per_process=4)
    c.mesh.update(data=1, fsdp=16, expert=2, tensor=2)
    c.learn.microbatch_rows = 32
    c.engine.update(pages=64 * 16, weights="int8")  # for eight conversations at full length
    return c
