"""EXAONE 4.0, with norms after each block, and K-EXAONE, with experts. Full layers among sliding
ones have no positions."""

from __future__ import annotations

import dataclasses

from ale_jax.config.architecture import Attention, Layer, PolicyShape
from ale_jax.model.families.decoder import (
    DENSE,
    attention,
    decoder,
    dense,
    feed_types,
    grouped_experts,
    layer_types,
    rms,
    windowed,
)
from ale_jax.model.families.family import LAYER, NORMS_AFTER, VECTOR, Family, Storage
from ale_jax.model.families.fields import Fields


def read(fields: Fields) -> PolicyShape:
    norm, feed = rms(fields, place="after"), dense(fields)
    return decoder(fields, [Layer(each, feed, norm) for each in _mixers(fields)], norm)


def read_moe(fields: Fields) -> PolicyShape:
    experts = grouped_experts(fields, "num_experts", fields.count("num_shared_experts"))
    norm, plain = rms(fields), dense(fields)
    for name in ("first_k_dense_replace", "first_last_k_dense_replace", "num_nextn_predict_layers"):
        fields.get(name)  # the types say it, or it only speeds up decoding
    for name, only in (("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")):
        fields.require(name, only)
    fields.require("is_moe_layer", [each != DENSE for each in feed_types(fields)])
    feeds = [plain if each == DENSE else experts for each in feed_types(fields)]
    layers = [Layer(*both, norm) for both in zip(_mixers(fields), feeds, strict=True)]
    return decoder(fields, layers, norm)


def _mixers(fields: Fields) -> list[Attention]:
    fields.get("sliding_window_pattern")  # the types say it
    mixers = windowed(fields, attention(fields, qk_norm="head"), layer_types(fields))
    if fields.get("sliding_window") is None:
        return mixers
    return [m if m.window else dataclasses.replace(m, rope=None) for m in mixers]


EXAONE4 = Family("exaone4", "Exaone4ForCausalLM", read, NORMS_AFTER)
BIAS = Storage(LAYER + "mlp.e_score_correction_bias", VECTOR)
EXAONE_MOE = Family(
    "exaone_moe", "ExaoneMoeForCausalLM", read_moe, {"router_bias_E": BIAS}, further="mtp."
)
