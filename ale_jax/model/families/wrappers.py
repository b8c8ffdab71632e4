"""Models that read images, too: a text model of one of the families, beside a tower for images.

The text model alone is read, as a checkpoint of its family would be. The tower is never loaded, and
an export does not have it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from ale_jax.model.families.decoder import num_layers
from ale_jax.model.families.fields import Fields
from ale_jax.model.families.registry import FAMILIES
from ale_jax.model.families.theirs import common_fields, theirs

# model_type of a wrapper -> of its text model -> the family that this is. Its text model may differ
# from the family in positions of images.
WRAPPERS = {
    "gemma3": {"gemma3_text": "gemma3_text"},
    "gemma4": {"gemma4_text": "gemma4_text"},
    "mistral3": {"mistral": "mistral", "ministral3": "ministral3"},
    "qwen3_5": {"qwen3_5_text": "qwen3_5_text"},
    "qwen3_5_moe": {"qwen3_5_moe_text": "qwen3_5_moe_text"},
    "qwen2_vl": {"qwen2_vl_text": "qwen2"},
    "qwen2_5_vl": {"qwen2_5_vl_text": "qwen2"},
    "qwen3_vl": {"qwen3_vl_text": "qwen3"},
    "internvl": {"qwen2": "qwen2", "qwen3": "qwen3"},
}
# These are published with the fields of their text models beside those of the wrapper.
_FLAT = ("qwen2_vl", "qwen2_5_vl")
# Of consequence for images alone, beside what transformers' classes of the wrappers have.
_OF_IMAGES = {"vision_config", "vision_token_id", "language_model_only", "image_token_id"}

# What transformers makes rope_parameters of.
_OF_ROTATION = {"rope_theta", "rope_scaling", "partial_rotary_factor"}

# How names of tensors begin, as transformers 4 and 5 write them: those of text, with the beginning
# that they have without a tower; and those of towers.
_TEXT = (
    (re.compile(r"(?:language_model\.model|model\.language_model)\."), "model."),
    (re.compile(r"language_model\.lm_head\."), "lm_head."),
)
_TOWER = re.compile(
    r"(?:model\.)?(?:visual|vision_tower|vision_model|multi_modal_projector|audio_tower|embed_vision"
    r"|embed_audio)\."
)


def is_wrapped(fields: Fields) -> bool:
    name = fields.get("model_type")
    return isinstance(name, str) and name in WRAPPERS


def text_config(given: Fields) -> dict[str, Any]:
    """Returns the configuration of the text model alone, under the name of its family, from that of
    the whole. ValueError names the field that is not supported."""
    inner = given.part("text_config")
    for part in (given, inner):
        if part.get("num_hidden_layers") is not None:
            num_layers(part)  # before transformers makes lists of as many
    values = {name: x for name, x in given.values.items() if name != "vision_config"}
    if given.get("model_type") == "gemma3":  # transformers reads it in models of text alone
        inner.require("final_logit_softcapping", None)
    whole = theirs(Fields(given.source, values), given.get("model_type"))
    text = whole.get_text_config()
    _refuse_rest(given, whole, text)
    found = text.to_diff_dict()
    for fields in (inner, given):  # the whole's own have the last word
        for name in ("tie_word_embeddings", "dtype", "torch_dtype"):
            if (value := fields.get(name)) is not None:
                found[name] = value
    known = WRAPPERS[whole.model_type]
    if text.model_type not in known:
        raise given.error(
            f"text_config.model_type {text.model_type!r:.40} is not supported in "
            f"{whole.model_type}, only {', '.join(known)}"
        )
    family = FAMILIES[known[text.model_type]]
    if text.model_type != family.model_type:
        _refuse_others(inner, text)
    return found | {"model_type": family.model_type, "architectures": [family.class_name]}


def _refuse_rest(given: Fields, whole: Any, text: Any) -> None:
    """Raises ValueError for a field beside the text model's that is not known."""
    known = {each.name for each in dataclasses.fields(whole)} | set(whole.attribute_map)
    if given.get("model_type") in _FLAT and "text_config" not in given.values:
        known |= {each.name for each in dataclasses.fields(text)} | _OF_ROTATION
    given.taken.update(known | common_fields() | _OF_IMAGES)
    given.refuse_rest()


def _refuse_others(inner: Fields, text: Any) -> None:
    """Raises ValueError for a field that the family would read, and this text model does not."""
    inner.taken.update(
        (each.name for each in dataclasses.fields(text)),
        text.attribute_map,
        common_fields(),
        _OF_ROTATION,
    )
    inner.refuse_rest()


def text_tensors(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tensors of the text model, by the names that they have without the tower's.
    ValueError for one that is there under two names."""
    found: dict[str, Any] = {}
    for name, tensor in tensors.items():
        if _TOWER.match(name):
            continue
        own = name
        for beginning, plain in _TEXT:
            own = beginning.sub(plain, own, count=1) if beginning.match(own) else own
        if own in found:
            raise ValueError(f"{tensor.file}: tensor {name}: {own} is there a second time")
        found[own] = tensor
    return found
