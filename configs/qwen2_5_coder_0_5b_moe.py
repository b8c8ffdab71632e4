"""Does a mixture upcycled from a dense model learn faster? Expect: unknown; nothing was run yet.
python -m ale_jax.launch --config=configs/qwen2_5_coder_0_5b_moe.py --workdir=W --config.weights=DIR

DIR: python -m ale_jax.model.weights.convert FILE.gguf DIR --experts=8 --experts-per-token=2
Each feed-forward block is copied eight times, and each token uses two of the copies. At step 0 this
computes the same function as the dense model.
Hardware: one GPU of 141 GB. Memory by `plan`: 82.9 GiB of each device.
"""

from ml_collections import ConfigDict

from ale_jax.configs import real_model


def get_config(algorithm: str = "ipa") -> ConfigDict:
    """algorithm: one of configs/algorithms.py."""
    c = real_model.qwen2_5_coder_0_5b(algorithm)
    c.name = "qwen2_5_coder_0_5b_moe"
    c.hardware.chip = "h200"
    c.model.update(num_experts=8, experts_per_token=2, expert_width=4864)
    return c
