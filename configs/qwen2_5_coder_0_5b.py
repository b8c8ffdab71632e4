"""Does IPA improve a pretrained code model on shell tasks? Expect: unknown; nothing was run yet.
python -m ale_jax.launch --config=configs/qwen2_5_coder_0_5b.py --config.weights=FILE --workdir=DIR

FILE: Qwen2.5-Coder-0.5B-Instruct as a .gguf file, which has a separate output head. For a
transformers folder add --config.model.tie_embeddings.
Hardware: one GPU of 80 GB. Memory by `plan`: 26.2 GiB of each device.
"""

from ml_collections import ConfigDict

from ale_jax.configs import real_model


def get_config(algorithm: str = "ipa") -> ConfigDict:
    """algorithm: one of configs/algorithms.py."""
    c = real_model.qwen2_5_coder_0_5b(algorithm)
    c.name = "qwen2_5_coder_0_5b"
    return c
