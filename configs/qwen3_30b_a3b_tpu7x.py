"""Does the paper's model train on a TPU7x-64, 32 chips? Expect: it fits; nothing was run yet.
python -m ale_jax.launch --config=configs/qwen3_30b_a3b_tpu7x.py --config.weights=DIR --workdir=...

Like configs/qwen3_30b_a3b.py, with the experts sharded over the eight devices of a host (a chip has
two), each of which samples by itself.
Hardware: Cloud TPU7x-64 (Ironwood). Memory by `plan`: 45.9 GiB of each device.
"""

from ml_collections import ConfigDict

from ale_jax.configs import real_model


def get_config(algorithm: str = "ipa") -> ConfigDict:
    """algorithm: one of configs/algorithms.py."""
    c = real_model.qwen3_30b_a3b(algorithm)
    c.name = "qwen3_30b_a3b_tpu7x"
    c.hardware.update(chip="tpu7x", devices=64, devices_per_process=8)
    c.mesh.update(data=1, fsdp=8, expert=8)
    c.learn.microbatch_rows = 64
    c.engine.pages = 64 * 128  # of each host: for all slots at full length
    return c
