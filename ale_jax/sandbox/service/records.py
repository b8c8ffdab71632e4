"""Records on the wire: plain JSON, read again into the same records."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from ale_jax.sandbox.api import SandboxError, SandboxStats
from ale_jax.sandbox.pool.api import Cause, Change, Event, State, Status
from ale_jax.sandbox.spec import SandboxSpec

R = TypeVar("R")


@dataclasses.dataclass(frozen=True)
class EventsAnswer:
    """next: what to ask `after` for the following ones. missed: some that came before these are
    forgotten, and may have been yours."""

    events: tuple[Event, ...]
    next: int
    missed: bool


def plain(value: Any) -> Any:
    """`value` with its records as objects, ready for `json`."""
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def record_from(kind: type[R], values: Any) -> R:
    """A flat record out of an answer. Fields that a newer service added are left out.

    Errors: SandboxError for what is no such record.
    """
    try:
        return kind(**{f.name: values[f.name] for f in dataclasses.fields(kind)})
    except (KeyError, TypeError, ValueError) as error:
        message = f"the service answered what is no {kind.__name__}: {error!r:.200}"
        raise SandboxError(f"{message}; is it of another version?") from error


def events_from(values: Any) -> EventsAnswer:
    """Errors: SandboxError."""
    answer = record_from(EventsAnswer, values)
    return dataclasses.replace(
        answer, events=tuple(record_from(Event, each) for each in answer.events)
    )


def status_from(values: Any) -> Status:
    """Errors: SandboxError."""
    status = record_from(Status, values)
    try:
        return dataclasses.replace(
            status,
            state=State(status.state),
            cause=status.cause and Cause(status.cause),
            spec=SandboxSpec.from_json(status.spec),
            history=tuple(
                Change(each["at"], State(each["state"]), each["detail"]) for each in status.history
            ),
            stats=status.stats and record_from(SandboxStats, status.stats),
        )
    except (KeyError, TypeError, ValueError) as error:
        message = f"the service answered what is no Status: {error!r:.200}"
        raise SandboxError(f"{message}; is it of another version?") from error
