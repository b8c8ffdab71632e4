"""Phi-3, Phi-3.5, Phi-4 and Phi-4-mini."""

from __future__ import annotations

import dataclasses
import math

from ale_jax.config.architecture import FactorScaling, Layer, PolicyShape, Rope
from ale_jax.model.families.decoder import (
    FULL,
    SLIDING,
    attention,
    decoder,
    dense,
    num_layers,
    rms,
    rope,
    windowed,
)
from ale_jax.model.families.family import HEADS_OUT, LAYER, MATRIX, Family, Storage
from ale_jax.model.families.fields import Fields


def read(fields: Fields) -> PolicyShape:
    width = fields.count("hidden_size") // fields.count("num_attention_heads")
    trained = fields.count("original_max_position_embeddings")
    is_long = fields.part("rope_parameters").get("rope_type") == "longrope"
    turned = _short_rope(fields, width, trained) if is_long else rope(fields, width, True)
    types = [SLIDING if fields.get("sliding_window") else FULL] * num_layers(fields)
    norm, mixers = rms(fields), windowed(fields, attention(fields, rope=turned), types)
    shape = decoder(fields, [Layer(each, dense(fields), norm) for each in mixers], norm)
    # Beyond the positions that it was trained at first, all frequencies change, those of keys that
    # are already there too. No cache can do that, so there is an end.
    return dataclasses.replace(shape, max_positions=trained) if is_long else shape


def _short_rope(fields: Fields, head_width: int, trained: int) -> Rope:
    """The embedding of sequences up to the trained length."""
    given = fields.part("rope_parameters")
    share = given.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    width = int(head_width * share)
    factors = given.items("short_factor")
    for name in ("rope_type", "type", "long_factor", "original_max_position_embeddings"):
        given.get(name)
    if len(factors) != width // 2 or not all(isinstance(x, int | float) and x > 0 for x in factors):
        raise fields.error(f"short_factor must have {width // 2} numbers above 0")
    factor = given.number("factor", fields.count("max_position_embeddings") / trained)
    own = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0
    scaling = FactorScaling(tuple(map(float, factors)), given.number("attention_factor", own))
    rope = Rope(given.number("rope_theta"), width, scaling)
    given.refuse_rest()
    return rope


QKV = ("q_DNH", "k_DGH", "v_DGH")
ALL_QKV, GATE_UP = LAYER + "self_attn.qkv_proj.weight", LAYER + "mlp.gate_up_proj.weight"
PHI3 = Family(
    "phi3",
    "Phi3ForCausalLM",
    read,
    {name: Storage(ALL_QKV, HEADS_OUT, QKV) for name in QKV}
    | {name: Storage(GATE_UP, MATRIX, ("gate_DF", "up_DF")) for name in ("gate_DF", "up_DF")},
)
