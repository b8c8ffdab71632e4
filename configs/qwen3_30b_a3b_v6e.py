"""Does the paper's model train on a TPU v6e-64, 64 chips? Expect: it fits; nothing was run yet.
python -m ale_jax.launch --config=configs/qwen3_30b_a3b_v6e.py --config.weights=DIR --workdir=...

Like configs/qwen3_30b_a3b.py, with attention heads and feed-forward blocks also sharded four ways.
Hardware: Cloud TPU v6e-64. Memory by --mode=plan: 22.4 GiB of each device.
"""

from ml_collections import ConfigDict

from configs import qwen3_30b_a3b


def get_config(algorithm: str = "ipa") -> ConfigDict:
    c = qwen3_30b_a3b.get_config(algorithm)
    c.name = "qwen3_30b_a3b_v6e"
    c.hardware = {"chip": "v6e", "devices": 64}
    c.mesh.update(expert=8, tensor=4)
    c.learn.microbatch_rows = 16
    return c
