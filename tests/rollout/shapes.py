"""A small engine that the tests share."""

from ale_jax.rollout.engine_shape import EngineShape

SIZES = {
    "slots": 4,
    "slot_tokens": 96,
    "decode_steps": 4,
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
    pages = sizes["slots"] * -(-sizes["slot_tokens"] // sizes["page_tokens"])
    return EngineShape(**({"pages": pages} | sizes))
