"""What the processes of a run tell each other: that they are alike, the time, and what they found.

The first process asks, over the connections that a run has; the others answer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import requires, version
from typing import Any

import jax

from ale_jax.config.run import RunConfig
from ale_jax.errors import EXIT_FAILED
from ale_jax.system.doctor.devices import check_sum
from ale_jax.system.doctor.findings import Finding, Report, State, fail, ok
from ale_jax.system.doctor.software import accelerators, find
from ale_jax.system.hosts.connection import Connection, Gone
from ale_jax.system.hosts.start import (
    PACKAGES,
    accept_followers,
    connect_to_leader,
    digest,
    own_address,
)

# Instead of a run's digest, so that processes which differ can meet and say in what.
PURPOSE = "doctor"
ROUNDS = 9  # trips to a process, of which the fastest tells most about its clock
MAX_CLOCK_S = 1.0  # between the clocks of two hosts

Clock = Callable[[], float]  # seconds since 1970


@dataclasses.dataclass(frozen=True)
class Trip:
    """How far away a process is. round_trip, ahead: of the fastest trip to a process, and of its
    clock, in seconds."""

    round_trip: float
    ahead: float


def own_facts(config: RunConfig) -> dict[str, Any]:
    """Returns what must be the same in all processes. digest: the one that a run compares."""
    versions = {name: version(name) for name in PACKAGES} | accelerators(
        requires("jax") or (), find
    )
    kind = jax.local_devices()[0].device_kind
    return {"digest": digest(config.to_json()), "kind of device": kind, **versions}


def connect(coordinator: str) -> dict[int, Connection]:
    """Makes the connections to all others in the first process, to the first one in the others.

    Errors: OSError, ValueError.
    """
    try:
        if jax.process_index():
            return {0: connect_to_leader(PURPOSE)[0]}
        followers = accept_followers(own_address(coordinator), PURPOSE)
        return {process: pair[0] for process, pair in followers.items()}
    except jax.errors.JaxRuntimeError as error:
        raise ConnectionError(f"the first process's address was not received: {error}") from error


def compare(
    followers: Mapping[int, Connection], facts: Mapping[str, Any], clock: Clock
) -> Iterator[Finding]:
    """Compares, in the first process, all others: how far away all others are, what they are, and
    what they found.

    Errors: OSError if one of them is gone, ValueError if it sent something else.
    """
    trips = {process: travel(process, each, clock) for process, each in followers.items()}
    yield describe_trips(trips)
    yield check_clocks({process: trip.ahead for process, trip in trips.items()})
    told = {process: _ask(process, each, "tell", list) for process, each in followers.items()}
    yield check_alike(facts, {process: answer[0] for process, answer in told.items()})
    for process, (_, *findings) in told.items():
        yield from others_findings(process, findings)


def add_up(followers: Mapping[int, Connection]) -> Iterator[Finding]:
    """Returns, in the first process, whether the devices of all can add up, as each process finds.

    Errors: OSError.
    """
    for connection in followers.values():
        connection.send({"kind": "sum"})
    yield check_sum()
    for process, connection in followers.items():
        if not _answer(process, connection, "sum", bool):
            yield fail(f"{process}: all-reduce", "not added up there", "see its own lines")


def end(followers: Mapping[int, Connection], code: int, adds_up: bool) -> None:
    """Lets the others end with `code`. adds_up: whether they can still do something together."""
    for connection in followers.values():
        with contextlib.suppress(Gone):  # it has ended
            connection.send({"kind": "end", "code": code, "adds_up": adds_up})


def follow(
    leader: Connection, facts: Mapping[str, Any], report: Report, clock: Clock
) -> tuple[int, bool]:
    """Answers the first process until it has all answers; returns what it says at the `end`.

    Errors: OSError if it is gone.
    """
    while True:
        question, _ = leader.receive()
        if question["kind"] == "end":
            return EXIT_FAILED if question["code"] else 0, question["adds_up"] is True
        if question["kind"] == "time":
            answer: Any = clock()
        elif question["kind"] == "tell":
            answer = [facts, *map(dataclasses.astuple, report.findings)]
        else:
            answer = report.check("all-reduce", check_sum)
        leader.send({"kind": "answer", "answer": answer})


def travel(process: int, connection: Connection, clock: Clock) -> Trip:
    """Asks a process for its time. Its clock was read at some moment of the trip, so that how far
    it is ahead is known up to half of the trip's duration."""
    trips = []
    for _ in range(ROUNDS):
        sent, began = clock(), time.perf_counter()
        there = _ask(process, connection, "time", float)
        duration = time.perf_counter() - began
        trips.append(Trip(duration, there - (sent + duration / 2)))
    return min(trips, key=lambda trip: trip.round_trip)


def describe_trips(trips: Mapping[int, Trip]) -> Finding:
    times = [trip.round_trip * 1e3 for trip in trips.values()]
    found = f"{min(times):.2f} to {max(times):.2f} ms to the other {len(times)}, and back"
    return ok("round trips", found)


def check_clocks(ahead: Mapping[int, float]) -> Finding:
    """Checks that the clocks of all processes agree. ahead: of the clock of each other process, in
    seconds, before that of the first one."""
    all_ahead = {0: 0.0, **ahead}
    first, last = (pick(all_ahead, key=all_ahead.__getitem__) for pick in (min, max))
    apart = all_ahead[last] - all_ahead[first]
    found = f"at most {apart:.3f} s apart (processes {first} and {last})"
    if apart < MAX_CLOCK_S:
        return ok("clocks", found)
    return fail("clocks", found, "synchronize the hosts' clocks (timedatectl set-ntp true)")


def check_alike(own: Mapping[str, Any], others: Mapping[int, Mapping[str, Any]]) -> Finding:
    """Checks whether the facts of all processes are those of the first one."""
    name, wrong = "alike", []
    for process, facts in others.items():
        if not isinstance(facts, Mapping):
            raise ValueError(f"process {process} has sent {facts!r:.80} instead of its versions")
        differing = [key for key in own.keys() | facts.keys() if own.get(key) != facts.get(key)]
        if differing == ["digest"]:
            wrong.append(f"process {process} has another config, or sees other devices")
        wrong += [
            f"process {process} has {key} {facts.get(key)} instead of {own.get(key)}"
            for key in sorted(differing)
            if key != "digest"
        ]
    if wrong:
        remedy = "install all hosts alike, and start them with the same line and the same configs"
        return fail(name, "; ".join(wrong), remedy)
    return ok(name, f"all {len(others) + 1} processes have the same versions, config and devices")


def others_findings(process: int, sent: Sequence[Any]) -> Iterator[Finding]:
    """Returns what another process found, all of it if it is not ok. ValueError if it is something
    else."""
    findings = list(map(Finding.parse, sent))
    bad = [finding for finding in findings if finding.state is not State.OK]
    for finding in bad:
        yield dataclasses.replace(finding, name=f"{process}: {finding.name}")
    if not bad:
        yield ok(f"process {process}", f"{len(findings)} checks of its own, all ok")


def _ask(process: int, connection: Connection, kind: str, expected: type) -> Any:
    """The answer to a question. Errors: ConnectionError if there is none of the expected type."""
    try:
        connection.send({"kind": kind})
    except Gone as error:
        raise _gone(process, error) from error
    return _answer(process, connection, kind, expected)


def _answer(process: int, connection: Connection, kind: str, expected: type) -> Any:
    try:
        answer = connection.receive()[0].get("answer")
    except Gone as error:
        raise _gone(process, error) from error
    if not isinstance(answer, expected):
        raise ConnectionError(f"process {process} answered {kind} with {answer!r:.80}")
    return answer


def _gone(process: int, error: Gone) -> ConnectionError:
    return ConnectionError(f"process {process} is gone: {error}; see its own lines")
