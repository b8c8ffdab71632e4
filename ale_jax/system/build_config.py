"""From plain nested dicts to a RunConfig: every field named, none too many, each of its type."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ale_jax.files import read_json
from ale_jax.system.checks import check_sections
from ale_jax.system.config import RunConfig
from ale_jax.system.fields import unknown_field


def build_config(values: Mapping[str, Any]) -> RunConfig:
    """The frozen form of `values`, a section being a dict in it.

    Raises:
      ValueError: a field is unknown, missing, of another type, or out of its range, or sections do
        not fit each other.
    """
    config = _build(RunConfig, values, "")
    try:
        check_sections(config)
    except ValueError as error:
        raise ValueError(f"config: {error}") from error
    return config


def stored_config(path: Path) -> RunConfig:
    """The config of the run whose config.json is at `path`. ValueError if it is damaged, or of a
    version of this code that had other fields."""
    return build_config(_with_tuples(read_json(path)))


def _with_tuples(value: Any) -> Any:
    """JSON has but one kind of sequence."""
    if isinstance(value, Mapping):
        return {name: _with_tuples(item) for name, item in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def field_names(record: type, prefix: str = "") -> Iterator[str]:
    """Dotted names of all fields of a record type, sections included."""
    for name, kind in typing.get_type_hints(record).items():
        yield prefix + name
        if dataclasses.is_dataclass(kind):
            yield from field_names(kind, f"{prefix}{name}.")


def _build(record: type, values: Any, path: str) -> Any:
    kinds = typing.get_type_hints(record)
    section = f"config.{path}".rstrip(".")
    if not isinstance(values, Mapping):
        raise ValueError(
            f"{section} is {values!r:.80}: a section with {', '.join(kinds)} is wanted"
        )
    for name in values:
        if name not in kinds:
            raise unknown_field(f"{path}{name}", field_names(RunConfig))
    for name in kinds:
        if name not in values:
            raise ValueError(f"config.{path}{name} is missing: set it in the config file")
    fields = {name: _convert(kind, values[name], path + name) for name, kind in kinds.items()}
    try:
        return record(**fields)
    except ValueError as error:
        raise ValueError(f"{section}: {error}") from error


def _convert(kind: Any, value: Any, name: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _build(kind, value, f"{name}.")
    if typing.get_origin(kind) is tuple:
        item_kind, _ = typing.get_args(kind)
        items = _of_type(tuple, value, name)
        return tuple(_convert(item_kind, item, f"{name}[{i}]") for i, item in enumerate(items))
    return _of_type(kind, value, name)


def _of_type(kind: type, value: Any, name: str) -> Any:
    # Strict on purpose: a leaf that holds 1 where a float belongs refuses the override 0.5.
    if type(value) is not kind:
        raise ValueError(
            f"config.{name} is {value!r:.80} ({type(value).__name__}): {kind.__name__} is wanted"
        )
    if kind is float and not math.isfinite(value):
        raise ValueError(f"config.{name} is {value}: a finite number is wanted")
    return value
