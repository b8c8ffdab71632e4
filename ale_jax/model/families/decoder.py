"""The parts that most families' configurations share: sizes, positions, attention, norms."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from ale_jax.config.architecture import (
    Attention,
    Dense,
    Experts,
    Layer,
    LinearScaling,
    Llama3Scaling,
    Norm,
    PolicyShape,
    Rope,
    Scaling,
    YarnScaling,
)
from ale_jax.model.families.fields import Fields

# Far above those of any model.
MOST_LAYERS = MOST_EXPERTS = 1024
FULL, SLIDING = "full_attention", "sliding_attention"
DENSE, SPARSE = "dense", "sparse"
_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu2": "relu2",
}


def decoder(fields: Fields, layers: list[Layer], norm: Norm, **others: Any) -> PolicyShape:
    """Returns the shape of these layers. others: further fields of the shape. ValueError, with the
    file's name, for layers that do not fit together."""
    vocab_size, width = fields.count("vocab_size"), fields.count("hidden_size")
    most = fields.count("max_position_embeddings")
    tied, family = fields.flag("tie_word_embeddings"), fields.get("model_type")
    try:
        return PolicyShape(vocab_size, width, tuple(layers), norm, most, tied, family, **others)
    except ValueError as error:
        raise fields.error(str(error)) from error


def num_layers(fields: Fields) -> int:
    return fields.count("num_hidden_layers", most=MOST_LAYERS)


def rms(fields: Fields, **kind: Any) -> Norm:
    return Norm(fields.number("rms_norm_eps"), **kind)


def attention(fields: Fields, *, partial: bool = False, **kind: Any) -> Attention:
    """Returns full attention. partial: as for `rope`. kind: what differs from plain attention with
    a rotary embedding."""
    width, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    groups = fields.count("num_key_value_heads", heads)
    head_width = fields.count("head_dim", max(1, width // heads))
    if heads % groups:
        raise fields.error(
            f"num_attention_heads {heads} must be a multiple of num_key_value_heads {groups}"
        )
    if "rope" not in kind:
        kind["rope"] = rope(fields, head_width, partial)
    kind.setdefault("scale", head_width**-0.5)
    return Attention(heads, groups, head_width, **kind)


def interleaved(mixer: Attention) -> Attention:
    """Returns the same with rotary pairs side by side."""
    assert mixer.rope is not None
    return dataclasses.replace(mixer, rope=dataclasses.replace(mixer.rope, interleaved=True))


def dense(fields: Fields, *, act: str = "hidden_act", **kind: Any) -> Dense:
    return Dense(fields.count("intermediate_size"), activation(fields, act), **kind)


def activation(fields: Fields, name: str = "hidden_act") -> Any:
    given = fields.get(name, "silu")
    if given not in _ACTIVATIONS:
        raise fields.error(f"{name} {given!r:.40} is not one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[given]


def silu_experts(
    fields: Fields, num: str, width: str, *, per_token: str = "num_experts_per_tok", **kind: Any
) -> Experts:
    """Returns experts with SiLU gates, or what `kind` says of their gates. num, width, per_token:
    the names of these fields."""
    if activation(fields) != "silu":
        raise fields.error(f"hidden_act {fields.get('hidden_act')!r:.40}: experts only have silu")
    total, groups = fields.count(num, most=MOST_EXPERTS), kind.get("groups", 1)
    # A group is as good as its best experts, and a token's experts are of the best groups.
    if total % groups or (groups > 1 and total < kind.get("merit", 2) * groups):
        raise fields.error(f"{total} experts cannot be divided into {groups} groups of two or more")
    chosen, best = fields.count(per_token, most=total), kind.get("top_groups", 1)
    if best > groups or chosen > total // groups * best:
        raise fields.error(f"{chosen} experts cannot be chosen among {best} of {groups} groups")
    return Experts(total, fields.count(per_token, most=total), fields.count(width), **kind)


def grouped_experts(fields: Fields, num: str, shared: int) -> Experts:
    """Returns experts that are chosen by groups, as in DeepSeek V3, with a sigmoid's score. num:
    the name of this field. shared: how many experts every token goes to, computed as one."""
    return silu_experts(
        fields,
        num,
        "moe_intermediate_size",
        score="sigmoid",
        renormalise=fields.flag("norm_topk_prob"),
        scale=fields.number("routed_scaling_factor"),
        choice_bias=True,
        groups=fields.count("n_group"),
        top_groups=fields.count("topk_group"),
        shared=fields.count("moe_intermediate_size") * shared,
    )


def layer_types(fields: Fields, known: tuple[str, ...] = (FULL, SLIDING)) -> list[str]:
    """Returns each layer's type, one of those that the family knows."""
    count, given = num_layers(fields), fields.items("layer_types")
    if len(given) != count:
        raise fields.error(f"layer_types has {len(given)} entries, the model {count} layers")
    for kind in given:
        if kind not in known:
            raise fields.error(f"layer_types {kind!r:.40} is not one of {', '.join(known)}")
    return given


def feed_types(fields: Fields) -> list[str]:
    """Returns whether each layer's feed-forward is dense or has experts."""
    types = fields.items("mlp_layer_types")
    if len(types) != num_layers(fields) or not set(types) <= {DENSE, SPARSE}:
        raise fields.error(f"mlp_layer_types {types!r:.80} must be {DENSE} or {SPARSE} per layer")
    return types


def windowed(fields: Fields, full: Attention, types: list[str]) -> list[Attention]:
    """Returns the attention of each layer: with the file's window where it is sliding."""
    if SLIDING not in types:
        fields.get("sliding_window")
        return [full] * len(types)
    window = fields.count("sliding_window")
    sliding = dataclasses.replace(full, window=window)
    return [sliding if kind == SLIDING else full for kind in types]


def rotated(fields: Fields, full: Attention) -> list[Attention]:
    """Returns the attention of each layer: by its type with the file's window, and with a rotary
    embedding of its own. full: without one."""
    ropes, mixers = fields.part("rope_parameters"), {}
    for kind in (FULL, SLIDING):
        window = fields.count("sliding_window") if kind == SLIDING else 0
        given = ropes.part(kind)
        given.require("truncate", True)  # transformers does not read it there
        rope = rope_of(fields, given, full.head_width)
        mixers[kind] = dataclasses.replace(full, window=window, rope=rope)
    ropes.refuse_rest()
    return [mixers[kind] for kind in layer_types(fields)]


def rope(fields: Fields, head_width: int, partial: bool = False) -> Rope:
    """Returns the rotary embedding, from the fields that transformers 5 or 4 writes. partial: the
    family reads partial_rotary_factor, which others ignore, and which is refused for them."""
    return rope_of(fields, rope_part(fields), head_width, partial)


def rope_part(fields: Fields) -> Fields:
    return fields.part("rope_parameters" if fields.get("rope_parameters") else "rope_scaling")


def rope_of(fields: Fields, given: Fields, head_width: int, partial: bool = False) -> Rope:
    """Returns the rotary embedding that a part of the file describes."""
    if not partial:
        given.require("partial_rotary_factor", 1.0)
        fields.require("partial_rotary_factor", 1.0)
    theta = given.number("rope_theta", fields.number("rope_theta", 10_000.0))
    if theta <= 1:  # all pairs would turn alike, and yarn divides by its logarithm
        raise fields.error(f"rope_theta {theta} must be above 1")
    share = given.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    width = int(head_width * share)
    if width % 2 or not 0 < width <= head_width:
        raise fields.error(f"a rotary embedding of {width} dims of a head of {head_width}")
    rope = Rope(theta, width, _scaling(fields, given, width))
    given.refuse_rest()
    return rope


def _scaling(fields: Fields, given: Fields, width: int) -> Scaling | None:
    kind = given.get("rope_type", given.get("type", "default"))
    given.get("type")
    most = fields.count("max_position_embeddings")
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(given.number("factor"))
    if kind == "llama3":
        return Llama3Scaling(
            given.number("factor"),
            given.number("low_freq_factor"),
            given.number("high_freq_factor"),
            given.number("original_max_position_embeddings", most),
        )
    if kind == "yarn":
        return _yarn(given, most)
    raise fields.error(f"rope_type {kind!r:.40} is not one of default, linear, llama3, yarn")


def _yarn(given: Fields, most: int) -> YarnScaling:
    trained = given.number("original_max_position_embeddings", most)
    factor = given.number("factor", most / trained)
    m, all_dims = given.get("mscale"), given.get("mscale_all_dim")
    if m and all_dims:
        own = mscale(factor, given.number("mscale")) / mscale(
            factor, given.number("mscale_all_dim")
        )
    else:
        own = mscale(factor, 1.0)
    return YarnScaling(
        factor,
        trained,
        given.number("beta_fast", 32.0),
        given.number("beta_slow", 1.0),
        given.number("attention_factor", own),
        given.flag("truncate", True),
    )


def mscale(factor: float, slope: float) -> float:
    """Returns by how much yarn stretches scores over positions that are `factor` times as far."""
    return 1.0 if factor <= 1 else 0.1 * slope * math.log(factor) + 1.0
