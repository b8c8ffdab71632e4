"""The crew: Ray actors that play episodes, and what happens when they or their sandboxes die."""

from __future__ import annotations

import dataclasses
import secrets
import time
from typing import Protocol

import ray
from ray.exceptions import RayError

from ale_jax.agent.loop import AgentLimits
from ale_jax.model.sampler import Sampling
from ale_jax.monitor.events import Recorder
from ale_jax.records import STATUS_RULES, Assignment, Episode, Slot, Status, Trajectory, Turn
from ale_jax.rollout.door import PolicyDoor
from ale_jax.rollout.play import Played
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.system.config import RolloutConfig
from ale_jax.system.player import PlayerSpec
from ale_jax.system.seat import ACTOR_LOST, Seat

NAME_BYTES = 16  # of a conversation: whoever knows it may speak in it
CLOSE_S = 3.0
SANDBOX_FAILURES = (Status.SANDBOX_START_FAILED, Status.SANDBOX_LOST)


@dataclasses.dataclass(frozen=True)
class CrewCounts:
    """Now: sandboxes_up, sandboxes_busy (episodes under way). Since the start: the others, where
    sandbox_failures counts attempts that ended for their sandbox's sake."""

    sandboxes_up: int
    sandboxes_busy: int
    sandboxes_restarted: int
    sandbox_failures: int
    actor_restarts: int


class Conversations(Protocol):
    """What the crew needs of the ledger."""

    def open(
        self, name: str, slot: Slot, sampling: Sampling, given: tuple[Turn, ...], redraw: int
    ) -> None: ...

    def close(self, name: str, episode: Episode | None) -> Trajectory | None: ...


@dataclasses.dataclass(frozen=True)
class _Attempt:
    assignment: Assignment
    sampling: Sampling
    rejected: tuple[Status, ...]  # how the attempts before this one ended
    conversation: str
    seat: Seat
    generation: int  # of the seat's actor that plays it

    @property
    def number(self) -> int:
        return len(self.rejected) + 1


class Crew:
    """Plays slots on `rollout.actors` actors; every slot comes back exactly once.

    Consumes slots, by `submit`, as long as `free_places` > 0. Waits, in `next_result`, for any
    actor's answer: an episode, the news that a new actor is up, or that one is lost; each attempt
    has one answer, so a dead actor's episodes end one by one. Is unblocked by the first answer that
    ends a slot, or by its timeout. Attempts that failed for the system's reasons, or are rejected
    for what was done in them, are made again from the same initial state, from within
    `next_result`, up to `rollout.retries` times, in a fresh conversation.

    It has no thread of its own: one thread calls `submit` and `next_result`. What the players say
    to the policy does not pass through it.
    """

    def __init__(
        self,
        rollout: RolloutConfig,
        sandbox: SandboxSpec | None,
        limits: AgentLimits,
        ledger: Conversations,
        door: PolicyDoor,
        record: Recorder,
    ):
        """sandbox: None where no task needs one.
        record: `EventLog.record`, told of lost and started actors and of failed attempts."""
        self._ledger, self._record, self._retries = ledger, record, rollout.retries
        spec = PlayerSpec(rollout.runtime, sandbox, limits, door.key)
        places = rollout.episodes_per_actor
        self._seats = [Seat(i, spec, places) for i in range(rollout.actors)]
        self._births: dict[ray.ObjectRef, Seat] = {seat.birth: seat for seat in self._seats}
        self._attempts: dict[ray.ObjectRef, _Attempt] = {}
        self._sandbox_failures = 0

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def free_places(self) -> int:
        """How many slots may be submitted now."""
        return sum(seat.free for seat in self._seats)

    @property
    def counts(self) -> CrewCounts:
        return CrewCounts(
            sandboxes_up=sum(seat.sandboxes_up for seat in self._seats),
            sandboxes_busy=len(self._attempts),
            sandboxes_restarted=sum(seat.sandboxes_restarted for seat in self._seats),
            sandbox_failures=self._sandbox_failures,
            actor_restarts=sum(seat.generation for seat in self._seats),
        )

    def submit(self, assignment: Assignment, sampling: Sampling) -> None:
        """Begins to play what is assigned; there must be a free place."""
        assert self.free_places > 0, "every place is taken"
        self._begin(assignment, sampling, rejected=())

    def next_result(self, timeout: float) -> Trajectory | None:
        """The next slot's trajectory; None if no slot comes back within `timeout` seconds.

        Errors: CrewError if actors cannot be kept alive; RayTaskError, with its traceback, if an
        episode failed for a reason that no status stands for, which is a bug.
        """
        deadline = time.monotonic() + timeout
        while answers := [*self._births, *self._attempts]:
            left = max(deadline - time.monotonic(), 0.0)
            ready, _ = ray.wait(answers, timeout=left)
            if not ready:
                return None
            if ready[0] in self._births:
                self._welcome(self._births.pop(ready[0]), ready[0])
            elif trajectory := self._take(ready[0]):
                return trajectory
        time.sleep(max(deadline - time.monotonic(), 0.0))  # a caller's loop is not to spin
        return None

    def close(self) -> None:
        """Ends all actors and their sandboxes. Slots under way do not come back."""
        for attempt in self._attempts.values():
            self._ledger.close(attempt.conversation, None)
        self._attempts.clear()
        goodbyes = [seat.say_goodbye() for seat in self._seats]
        ray.wait(goodbyes, num_returns=len(goodbyes), timeout=CLOSE_S)
        for seat in self._seats:
            seat.kill()

    def _begin(
        self, assignment: Assignment, sampling: Sampling, rejected: tuple[Status, ...]
    ) -> None:
        seat = max(self._seats, key=lambda seat: seat.free)
        conversation = secrets.token_urlsafe(NAME_BYTES)
        slot, given = assignment.slot, assignment.given
        redraw = sum(STATUS_RULES[status].redraw for status in rejected)
        self._ledger.open(conversation, slot, sampling, given, redraw)
        attempt = _Attempt(assignment, sampling, rejected, conversation, seat, seat.generation)
        self._attempts[seat.play(slot, conversation, assignment.opening)] = attempt
        seat.busy += 1

    def _take(self, answer: ray.ObjectRef) -> Trajectory | None:
        """Settles one attempt: its slot comes back, or is begun again."""
        attempt = self._attempts.pop(answer)
        attempt.seat.busy -= 1
        episode = self._episode(attempt, answer)
        rule = STATUS_RULES[episode.status]
        again = rule.retry and attempt.number <= self._retries
        if rule.retry:
            self._note_failure(attempt, episode, again)
        if not again:
            trajectory = self._ledger.close(attempt.conversation, episode)
            return dataclasses.replace(trajectory, rejected=attempt.rejected)
        self._ledger.close(attempt.conversation, None)
        rejected = (*attempt.rejected, episode.status)
        self._begin(attempt.assignment, attempt.sampling, rejected)
        return None

    def _episode(self, attempt: _Attempt, answer: ray.ObjectRef) -> Episode:
        try:
            played: Played = ray.get(answer)
        except ACTOR_LOST as error:
            self._replace(attempt.seat, attempt.generation, error)
            return _lost(attempt.assignment.slot, error)
        if attempt.generation == attempt.seat.generation:
            attempt.seat.note(played)
        return played.episode

    def _welcome(self, seat: Seat, birth: ray.ObjectRef) -> None:
        generation = seat.generation
        try:
            pid = ray.get(birth)
        except ACTOR_LOST as error:
            self._replace(seat, generation, error)
        else:
            detail = f"actor {seat.number} plays in process {pid}"
            self._record("actor_started", detail, actor=seat.number, pid=pid, restarts=generation)

    def _replace(self, seat: Seat, generation: int, error: RayError) -> None:
        if generation != seat.generation:
            return  # another of its episodes brought the news before
        self._record("actor_lost", str(error), actor=seat.number, restarts=generation)
        self._births.pop(seat.birth, None)
        seat.replace(error)
        self._births[seat.birth] = seat

    def _note_failure(self, attempt: _Attempt, episode: Episode, again: bool) -> None:
        self._sandbox_failures += episode.status in SANDBOX_FAILURES
        slot = attempt.assignment.slot
        self._record(
            "attempt_failed" if STATUS_RULES[episode.status].infra else "attempt_rejected",
            episode.detail,
            status=episode.status.value,
            phase=slot.phase,
            group=slot.group,
            member=slot.member,
            start=slot.start,
            attempt=attempt.number,
            retried=again,
        )


def _lost(slot: Slot, error: RayError) -> Episode:
    return Episode(
        slot=slot,
        status=Status.ACTOR_LOST,
        reward=None,
        turns=0,
        malformed_calls=0,
        seconds=0.0,
        env_seconds=0.0,
        detail=f"{type(error).__name__}: {error}",
    )
