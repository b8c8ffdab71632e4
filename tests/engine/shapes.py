"""A small engine that the tests shard."""

from ale_jax.config.engine import EngineShape

SIZES = {
    "max_sequences": 4,
    "max_sequence_length": 96,
    "decode_steps": 4,
    "dispatch_ahead": False,
    "prefill_tokens": (8, 16),
    "prefill_rows": 1,
    "prefill_budget": 64,
    "page_tokens": 8,
    "share_across_versions": False,
    "int8_cache": False,
    "weights": "same",
}


def engine_shape(**changes) -> EngineShape:
    """With pages for all slots, if nothing else is said."""
    sizes = SIZES | changes
    pages = sizes["max_sequences"] * -(-sizes["max_sequence_length"] // sizes["page_tokens"])
    return EngineShape(**({"pages": pages} | sizes))
