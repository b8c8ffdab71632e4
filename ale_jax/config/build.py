"""Builds a RunConfig from nested dicts, which must name exactly its fields, with exact types."""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from ale_jax.config.fields import unknown_field
from ale_jax.config.run import RunConfig
from ale_jax.config.setting import Options, Weights
from ale_jax.config.worlds import Domain

T = TypeVar("T")


def build_config(values: Mapping[str, Any]) -> RunConfig:
    """Returns the RunConfig of `values`, in which each section is a dict.

    Each section is checked by itself; `system/checks.py` compares them.

    Raises:
      ValueError: a field is unknown, missing, of the wrong type or out of range.
    """
    return _build(RunConfig, values, "")


def build_domain(values: Mapping[str, Any]) -> Domain:
    """Returns a Domain as a config writes it. ValueError as `build_config`."""
    return _build(Domain, with_tuples(values), "worlds.train.", is_whole=False)


def with_tuples(value: Any) -> Any:
    """Converts lists to tuples: JSON has only lists, and the config has only tuples."""
    if isinstance(value, Mapping):
        return {name: with_tuples(item) for name, item in value.items()}
    return tuple(map(with_tuples, value)) if isinstance(value, list) else value


def with_record_defaults(stored: Mapping[str, Any], kind: type = RunConfig) -> dict[str, Any]:
    """Returns a config as JSON holds it, in which the records of tuples have all their fields. A
    config that is older than a field of theirs means its default."""
    kinds = typing.get_type_hints(kind)
    return {name: _whole(kinds.get(name), value) for name, value in stored.items()}


def _whole(kind: Any, value: Any) -> Any:
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
        return with_record_defaults(value, kind)
    record, *_ = typing.get_args(kind) or (None,)
    if not (isinstance(value, list) and dataclasses.is_dataclass(record)):
        return value
    defaults = {field.name: field.default for field in dataclasses.fields(record)}
    return [
        json.loads(json.dumps(defaults)) | each if isinstance(each, Mapping) else each
        for each in value
    ]


def field_names(record: type, prefix: str = "") -> Iterator[str]:
    """Yields the dotted names of all fields of a dataclass, sections included."""
    for name, kind in typing.get_type_hints(record).items():
        yield prefix + name
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            yield from field_names(kind, f"{prefix}{name}.")


def _build(record: type[T], values: Any, path: str, is_whole: bool = True) -> T:
    """is_whole: every field must be there, and is no default: so for sections, which a config shows
    and overrides by their names, and not for the records of a tuple."""
    kinds = typing.get_type_hints(record)
    section = f"config.{path}".rstrip(".")
    if not isinstance(values, Mapping):
        raise ValueError(f"{section} is {values!r:.80}: expected a section with {', '.join(kinds)}")
    for name in values:
        if name not in kinds:
            known = field_names(RunConfig) if is_whole else field_names(record, path)
            raise unknown_field(f"{path}{name}", known)
    for name in kinds:
        if is_whole and name not in values:
            raise ValueError(f"config.{path}{name} is missing: set it in the config file")
    fields = {name: _convert(kinds[name], each, path + name) for name, each in values.items()}
    try:
        return record(**fields)
    except ValueError as error:
        is_named = path and str(error).startswith(path)
        raise ValueError(f"config.{error}" if is_named else f"{section}: {error}") from error


def _convert(kind: Any, value: Any, name: str) -> Any:
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _build(kind, value, f"{name}.")
    if kind == Options:
        return _options(value, name)
    if isinstance(value, Mapping) and kind == Weights:
        value = tuple(sorted(value.items()))
    if typing.get_origin(kind) is tuple:
        items, kinds = _of_type(tuple, value, name), typing.get_args(kind)
        if kinds[-1] is Ellipsis:
            kinds = kinds[:1] * len(items)
        if len(items) != len(kinds):
            raise ValueError(f"config.{name} is {value!r:.80}: expected {len(kinds)} values")
        places = enumerate(zip(kinds, items, strict=True))
        return tuple(_of_tuple(kind, item, f"{name}[{i}]") for i, (kind, item) in places)
    return _of_type(kind, value, name)


def _options(value: Any, name: str) -> Options:
    """Takes a dict, or the pairs that a stored config has of it."""
    pairs = _of_type(tuple, tuple(value.items()) if isinstance(value, Mapping) else value, name)
    for pair in pairs:
        match pair:
            case str(), str() | int() | float() | bool():
                continue
            case str(), tuple(texts) if all(isinstance(text, str) for text in texts):
                continue
        raise ValueError(
            f"config.{name} has {pair!r:.80}: expected a name with a text, a number, True or "
            "False, or a tuple of texts"
        )
    return tuple(sorted(pairs))


def _of_tuple(kind: Any, value: Any, name: str) -> Any:
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _build(kind, value, f"{name}.", is_whole=False)
    return _convert(kind, value, name)


def _of_type(kind: type, value: Any, name: str) -> Any:
    # Strict on purpose: if 1 were accepted where a float belongs, the field would count as an int
    # and the override 0.5 would be refused.
    if type(value) is not kind:
        raise ValueError(
            f"config.{name} is {value!r:.80} ({type(value).__name__}): expected {kind.__name__}"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"config.{name} is {value}: expected a finite number")
    return value
