"""Does IPA improve a pretrained code model on shell tasks? Expect: unknown; nothing was run yet.
python -m ale_jax.launch --config=configs/qwen2_5_coder_0_5b.py --config.weights=FILE --workdir=DIR

FILE: Qwen2.5-Coder-0.5B-Instruct as a .gguf file, which has a separate output head. For a
transformers folder add --config.model.tie_embeddings.
Hardware: one GPU of 80 GB. Memory by `plan`: 25.7 GiB of each device.
"""

from ml_collections import ConfigDict

from ale_jax.configs import smollm2_135m


def get_config(algorithm: str = "ipa") -> ConfigDict:
    c = smollm2_135m.real_model(algorithm)
    c.name = "qwen2_5_coder_0_5b"
    c.model.update(width=896, num_layers=24, num_heads=14, num_kv_heads=2, head_width=64)
    c.model.update(mlp_width=4864, qkv_bias=True, rope_theta=1e6, norm_eps=1e-6)
    c.model.max_positions = 32_768
    c.model.tie_embeddings = False
    c.tokenizer.vocab_size = 151_936
    return c
