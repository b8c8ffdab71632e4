"""Granite with sinks, windows, and a rotary embedding of each layer's own."""

from __future__ import annotations

import dataclasses
from typing import Any

from ale_jax.config.architecture import Attention, PolicyShape
from ale_jax.model.families.decoder import layer_types, windowed
from ale_jax.model.families.family import LAYER, VECTOR, Family, Storage
from ale_jax.model.families.fields import Fields
from ale_jax.model.families.granite import read as read_granite


def read(fields: Fields) -> PolicyShape:
    shape, types, thetas = (
        read_granite(fields),
        layer_types(fields),
        fields.items("layer_rope_theta"),
    )
    if len(thetas) != len(types):
        raise fields.error(f"layer_rope_theta has {len(thetas)} entries, not {len(types)}")
    mixer = shape.layers[0].mixer
    assert isinstance(mixer, Attention)
    mixers = windowed(fields, dataclasses.replace(mixer, sinks=True), types)
    layers = tuple(
        dataclasses.replace(layer, mixer=_turned(fields, own, theta))
        for layer, own, theta in zip(shape.layers, mixers, thetas, strict=True)
    )
    return dataclasses.replace(shape, layers=layers)


def _turned(fields: Fields, mixer: Attention, theta: Any) -> Attention:
    """The same with a rotary embedding of this base; 0: with none."""
    if theta == 0:
        return dataclasses.replace(mixer, rope=None)
    if type(theta) not in (int, float) or not 1 < theta < float("inf"):
        raise fields.error(f"layer_rope_theta {theta!r:.40} must be 0 or above 1")
    assert mixer.rope is not None
    return dataclasses.replace(mixer, rope=dataclasses.replace(mixer.rope, theta=float(theta)))


SINKS = {"sink_N": Storage(LAYER + "self_attn.sinks", VECTOR)}
GRANITE_SWA = Family("granite_swa", "GraniteSWAForCausalLM", read, SINKS)
