"""The configurations that transformers makes of files: its defaults are the meaning of a field that
a file leaves out."""

from __future__ import annotations

from typing import Any

from ale_jax.model.families.fields import Fields


def theirs(given: Fields, model_type: str) -> Any:
    """Returns transformers' configuration of this type, with the fields of the file. ValueError,
    with transformers' reason, if it does not accept them."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        raise given.error(f"model_type {model_type} needs a newer transformers: upgrade it")
    try:
        made = CONFIG_MAPPING[model_type](**given.values)
        made.to_dict()  # which fails for some values that are accepted
        return made
    except Exception as error:  # of many kinds: what it makes of hostile values is not specified
        why = " ".join(str(error).split())
        raise given.error(f"transformers does not accept it: {why:.300}") from error


def common_fields() -> set[str]:
    """Returns the names of the fields that all of transformers' configurations have."""
    from transformers import PreTrainedConfig

    return set(PreTrainedConfig().to_dict()) - {"tie_word_embeddings"}
