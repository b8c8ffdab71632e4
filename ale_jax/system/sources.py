"""The weights and the tokenizer that a config names: what they are, and that they are there."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from ale_jax.config.model import ModelConfig, TokenizerConfig
from ale_jax.config.run import RunConfig
from ale_jax.model.template_settings import checked_date
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.model.weights.hub import is_name, pinned
from ale_jax.model.weights.load import open_checkpoint, read_shape
from ale_jax.model.weights.peft_reader import load_peft
from ale_jax.model.weights.shape import policy_shape
from ale_jax.system.teacher import check_teacher, teacher_shape


def with_sources(
    config: RunConfig, given: Collection[str], recorded: RunConfig | None = None
) -> RunConfig:
    """Returns the config with the shape of its weights, and with the commits that names of models
    stand for now, so that all processes of a run, and a run that is continued, read the same.

    given: dotted names of fields that were set to what they are, whatever their defaults. recorded:
    of a run that is there; if it has the same sources, they are not asked again.

    Raises:
      ValueError: a name cannot be resolved; there are no such weights; or a field of `model`, or
        the vocabulary's size, that is in `given` or has another value than its default is not that
        of the weights.
    """
    known = recorded or RunConfig()
    path = _commit(config.tokenizer.path, known.tokenizer.path)
    weights = _commit(config.weights, known.weights)
    teacher = _commit(config.teacher.weights, known.teacher.weights)
    config = dataclasses.replace(
        config,
        weights=weights,
        tokenizer=dataclasses.replace(config.tokenizer, path=path),
        teacher=dataclasses.replace(config.teacher, weights=teacher),
    )
    if not weights:
        return config
    if weights == known.weights:
        model, architecture = known.model, known.architecture
        size = known.tokenizer.vocab_size
    else:
        shape = read_shape(weights)
        model, size = ModelConfig.nearest(shape), shape.vocab_size
        architecture = "" if model.describes(shape) else shape.source
    _refuse(weights, [*_differences(config, model, given), *_size(config, size, given)])
    tokenizer = dataclasses.replace(config.tokenizer, vocab_size=size)
    return dataclasses.replace(config, model=model, tokenizer=tokenizer, architecture=architecture)


def _commit(source: str, recorded: str) -> str:
    """The source with its commit: that of a run that named no other revision."""
    is_recorded = is_name(source) and is_name(recorded) and recorded.startswith(f"{source}@")
    return recorded if is_recorded else pinned(source)


def with_other_weights(config: RunConfig, weights: str) -> RunConfig:
    """Returns the config with other weights, of whatever shape. Errors as `with_sources`."""
    size = TokenizerConfig().vocab_size
    tokenizer = dataclasses.replace(config.tokenizer, vocab_size=size)
    changed = dataclasses.replace(config, weights=weights, model=ModelConfig(), tokenizer=tokenizer)
    return with_sources(changed, ())


def check_sources(config: RunConfig, fetch: bool = True) -> None:
    """Raises ValueError unless the weights, the adapters and the tokenizer that the config names
    are there, and fit the model and each other. fetch: False: of weights that a name stands for,
    only the description is fetched and read."""
    if config.weights:
        check_weights(config, fetch)
    tokenizer = given_tokenizer(config)
    if config.weights and tokenizer:
        tokenizer.check_fits(config.tokenizer.vocab_size)
    if config.lora.start:
        policy = policy_shape(config, config.tokenizer.vocab_size)
        load_peft(Path(config.lora.start), policy, config.lora)
    if config.teacher.weights:
        teacher_shape(config, policy_shape(config, config.tokenizer.vocab_size).vocab_size)
        source = config.tokenizer.path or config.weights
        if not source:
            raise ValueError(
                "the run trains its own tokenizer, which no teacher has: set "
                f"config.tokenizer.path to {config.teacher.weights}"
            )
        check_teacher(config, source)


def given_tokenizer(config: RunConfig) -> ChatTokenizer | None:
    """Returns the tokenizer that the config names, with the settings of its chat template; None if
    the run trains its own. ValueError if it cannot be used."""
    asked = config.tokenizer
    variables, date = dict(asked.chat_template_kwargs), checked_date(asked.date)
    if source := asked.path or config.weights:
        return ChatTokenizer.load(source, variables=variables, date=date)
    if variables:
        raise ValueError(
            f"config.tokenizer.chat_template_kwargs {variables!r:.80} is for the templates of "
            "models that are given: name weights, or leave it out"
        )
    return None


def check_weights(config: RunConfig, fetch: bool = True) -> None:
    """Raises ValueError unless `config.weights` are complete, and of the model's shape. fetch: as
    for `check_sources`."""
    described = not fetch and is_name(config.weights)
    found = read_shape(config.weights) if described else open_checkpoint(config.weights).shape
    names = {f"model.{each.name}" for each in dataclasses.fields(ModelConfig)}
    size = _size(config, found.vocab_size, {"tokenizer.vocab_size"})
    _refuse(config.weights, [*_differences(config, ModelConfig.nearest(found), names), *size])


def _refuse(weights: str, differences: list[str]) -> None:
    if differences:
        raise ValueError(
            f"{weights} has another shape: {', '.join(differences)}: leave out these fields, and "
            "the weights tell them"
        )


def _differences(config: RunConfig, stored: ModelConfig, given: Collection[str]) -> Iterator[str]:
    """Describes the fields of `model` that were given and are not those of the weights."""
    default = ModelConfig()
    for each in dataclasses.fields(ModelConfig):
        name, value = each.name, getattr(config.model, each.name)
        is_given = f"model.{name}" in given or value != getattr(default, name)
        if is_given and value != getattr(stored, name) and _matters(stored, name, value):
            yield f"config.model.{name} {value} (stored: {getattr(stored, name)})"


def _matters(model: ModelConfig, name: str, value: Any) -> bool:
    """Whether a model would be another one with this value of a field."""
    with contextlib.suppress(ValueError):  # with this value there is no such model
        changed = dataclasses.replace(model, **{name: value})
        return changed.policy_shape(1) != model.policy_shape(1)
    return True


def _size(config: RunConfig, stored: int, given: Collection[str]) -> Iterator[str]:
    value, default = config.tokenizer.vocab_size, TokenizerConfig().vocab_size
    if value != stored and ("tokenizer.vocab_size" in given or value != default):
        yield f"config.tokenizer.vocab_size {value} (stored: {stored})"
