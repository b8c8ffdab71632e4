"""Does the paper's model train on a TPU v5p-64, 32 chips? Expect: it fits; nothing was run yet.
python -m ale_jax.launch --config=configs/qwen3_30b_a3b_v5p.py --config.weights=DIR --workdir=...

Like configs/qwen3_30b_a3b.py, with the experts sharded over the four chips of a host, each of which
samples by itself.
Hardware: Cloud TPU v5p-64. Memory by `plan`: 74.3 GiB of each device.
"""

from ml_collections import ConfigDict

from ale_jax.configs import real_model


def get_config(algorithm: str = "ipa") -> ConfigDict:
    """algorithm: one of configs/algorithms.py."""
    c = real_model.qwen3_30b_a3b(algorithm)
    c.name = "qwen3_30b_a3b_v5p"
    c.hardware.update(chip="v5p", devices=32, devices_per_process=4)
    c.mesh.update(data=1, fsdp=8, expert=4)
    c.learn.microbatch_rows = 32
    c.engine.pages = 64 * 128  # of each host: for all slots at full length
    return c
