"""Commands: the calls that all processes of a run make, in one order, with the same arguments.

A program on a mesh that several processes share runs only if each of them dispatches it, and waits
forever if one of them dispatches another one first. So everything that happens on the shared
devices is a command. The first process decides on it and logs it; the others follow the log.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from jax.sharding import Mesh

from ale_jax.learn.manifest import Digests, file_digests
from ale_jax.model.sharding import dispatching
from ale_jax.system.rollouts.policy_replicas import PolicyReplica


@dataclasses.dataclass(frozen=True)
class Command:
    """A method that all processes execute. rows: whether the result is a tree of rows, of which
    each process has its own. forgets: whether no later command is given the arrays of earlier ones.
    waits: whether the first process waits until all have made the call."""

    call: Callable[..., Any]
    takes_batches: bool
    rows: bool
    forgets: bool
    waits: bool


COMMANDS: dict[str, Command] = {}

# Is given the number of a process and of an engine in it, when that was busy, in seconds of
# `time.monotonic`, and what is told beside it.
EnginesObserver = Callable[[int, int, float, float, Mapping[str, int]], None]


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes that the first process has sent to another one over its log. rows: those of batches."""

    sent: int
    rows: int

    def __sub__(self, earlier: Traffic) -> Traffic:
        return Traffic(self.sent - earlier.sent, self.rows - earlier.rows)


class Processes(Protocol):
    """The processes that train together.

    address: of this one, as rollout workers reach it.
    """

    address: str

    def begin(self, tokenizer_size: int, mesh: Mesh, num_rows: int) -> None:
        """Lets all of them make their trainer. tokenizer_size: number of the tokenizer's tokens.
        num_rows: of every batch."""

    def run(self, target: Any, name: str, batches: Sequence[Any], scalars: dict[str, Any]) -> Any:
        """Calls the command of `target` on all processes. Returns the result of this one; that of a
        command of rows is whole."""

    def open_replicas(
        self,
        tokenizer_files: Mapping[str, str],
        cluster_address: str,
        observer: EnginesObserver | None = None,
    ) -> list[PolicyReplica]:
        """Lets the other processes open an engine, with the weights that were published; returns
        them. tokenizer_files: the texts of the tokenizer's files, by name. cluster_address: of this
        machine, as rollout workers on other nodes reach it; empty if there are none. observer: of
        their engines, with `config.timeline`."""

    def digests(self, folder: Path) -> Digests:
        """Returns the digests of all files below a folder that all of them see; each reads its own.
        From any thread.

        OSError if a file cannot be read."""

    def traffic(self) -> list[Traffic]:
        """Returns what was sent to each of the others since the start."""

    def check(self) -> None:
        """Raises RunFailed if one of them is lost."""


class Alone:
    """A run of one process."""

    address = "127.0.0.1"

    def begin(self, tokenizer_size: int, mesh: Mesh, num_rows: int) -> None:
        pass

    def run(self, target: Any, name: str, batches: Sequence[Any], scalars: dict[str, Any]) -> Any:
        return perform(target, name, batches, scalars)

    def open_replicas(
        self,
        tokenizer_files: Mapping[str, str],
        cluster_address: str,
        observer: EnginesObserver | None = None,
    ) -> list[PolicyReplica]:
        return []

    def digests(self, folder: Path) -> Digests:
        return file_digests(folder)

    def traffic(self) -> list[Traffic]:
        return []

    def check(self) -> None:
        pass


def command(
    rows: bool = False, forgets: bool = False, waits: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a method a command of its object, which has `processes` and a `mesh`.

    Its first argument may be `batches`, records of arrays with the rows of a batch, of which the
    method is given the rows of its own process; the others are JSON, and given by name. The result
    is None, the same in all processes, or (rows) a tree of host arrays. Rows that were sent for one
    command are not sent again for the next, until one `forgets` them.
    """

    def register(method: Callable[..., Any]) -> Callable[..., Any]:
        name, takes_batches = method.__name__, "batches" in inspect.signature(method).parameters
        assert name not in COMMANDS, name
        COMMANDS[name] = Command(method, takes_batches, rows, forgets, waits)

        @functools.wraps(method)
        def call(self: Any, *batches: Sequence[Any], **scalars: Any) -> Any:
            assert len(batches) == takes_batches, (name, len(batches))
            return self.processes.run(self, name, *batches or ((),), scalars)

        return call

    return register


def perform(target: Any, name: str, batches: Sequence[Any], scalars: dict[str, Any]) -> Any:
    """Calls a command of `target` in this process."""
    known = COMMANDS[name]
    with dispatching(target.mesh):
        return known.call(target, *[batches] * known.takes_batches, **scalars)
