"""What tiny random models with a tower for images are made of."""

_SIGLIP = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_QWEN = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2}
_QWEN |= {"out_hidden_size": 32, "patch_size": 14}
_QWEN3 = _QWEN | {"num_position_embeddings": 16, "deepstack_visual_indexes": []}
_MROPE = {"rope_theta": 1e4, "rope_type": "default"}
# model_type -> (the family of its text, what its text differs in, its tower)
OF_WRAPPER = {
    "gemma3": (
        "gemma3_text",
        {"final_logit_softcapping": None},
        _SIGLIP | {"model_type": "siglip_vision_model"},
    ),
    "gemma4": (
        "gemma4_text",
        {},
        {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
        | {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "patch_size": 4}
        | {"pooling_kernel_size": 2, "position_embedding_size": 16, "default_output_length": 4},
    ),
    "mistral3": (
        "ministral3",
        {"model_type": "ministral3"},
        _SIGLIP | {"model_type": "pixtral", "head_dim": 8},
    ),
    "qwen3_5": ("qwen3_5_text", {}, _QWEN3),
    "qwen3_5_moe": ("qwen3_5_moe_text", {}, _QWEN3),
    "qwen2_vl": (
        "qwen2",
        {"rope_parameters": _MROPE | {"mrope_section": [2, 1, 1]}},
        {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2},
    ),
    "qwen2_5_vl": (
        "qwen2",
        {"rope_parameters": _MROPE | {"mrope_section": [2, 1, 1]}},
        _QWEN | {"fullatt_block_indexes": [0]},
    ),
    "qwen3_vl": (
        "qwen3",
        {"rope_parameters": _MROPE | {"mrope_section": [4, 2, 2], "mrope_interleaved": True}},
        _QWEN3,
    ),
    "internvl": (
        "qwen3",
        {"model_type": "qwen3"},
        _SIGLIP | {"image_size": [28, 28], "patch_size": [14, 14]},
    ),
}
