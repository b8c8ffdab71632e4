"""The agent loop: one task, one policy, one environment; always ends in exactly one Episode."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from ale_jax.agent.api import Environment, Message, Policy, PolicyError, Reply, VerifierError
from ale_jax.records import Episode, Slot, Status
from ale_jax.sandbox.api import SandboxError, SandboxStartError

T = TypeVar("T")

# The first match counts. Whatever is not listed is a bug and is not caught.
FAILURES: tuple[tuple[type[Exception], Status], ...] = (
    (SandboxStartError, Status.SANDBOX_START_FAILED),
    (SandboxError, Status.SANDBOX_LOST),
    (VerifierError, Status.VERIFIER_ERROR),
    (PolicyError, Status.MODEL_ERROR),
)


@dataclasses.dataclass(frozen=True)
class AgentLimits:
    """turns: replies that the environment answers; then the state is graded as it stands."""

    turns: int

    def __post_init__(self):
        if self.turns < 1:
            raise ValueError(f"turns {self.turns} must be at least 1")


class ScriptedPolicy:
    """Plays fixed replies: oracles, and the policies of tests."""

    def __init__(self, replies: Sequence[str]):
        self._replies = iter(replies)

    def reply(self, new_messages: Sequence[Message]) -> Reply:
        try:
            return Reply(next(self._replies), "stop")
        except StopIteration:
            raise PolicyError("the script has no further reply") from None


def play(env: Environment, policy: Policy, slot: Slot, limits: AgentLimits) -> Episode:
    """Plays `slot.task` to its end. Failures of the system come back as a status, never as 0."""
    playing = _Playing(env)
    start = time.monotonic()
    reward, detail = None, ""
    try:
        status, reward = playing.run(policy, slot.task.seed, limits.turns)
    except tuple(kind for kind, _ in FAILURES) as error:
        status = status_of(error)
        detail = f"{type(error).__name__}: {error}"
    return Episode(
        slot=slot,
        status=status,
        reward=reward,
        turns=playing.turns,
        malformed_calls=playing.malformed_calls,
        seconds=time.monotonic() - start,
        env_seconds=playing.env_seconds,
        detail=detail,
    )


def status_of(error: Exception) -> Status:
    """The status of an episode that `error` ended."""
    return next(status for kind, status in FAILURES if isinstance(error, kind))


class _Playing:
    """An episode under way. Its counters survive the exception that may end it."""

    def __init__(self, env: Environment):
        self._env = env
        self.turns = 0
        self.malformed_calls = 0
        self.env_seconds = 0.0

    def run(self, policy: Policy, seed: int, max_turns: int) -> tuple[Status, float]:
        instruction, _ = self._timed(self._env.reset, seed)
        new = (Message("system", self._env.system_prompt), Message("user", instruction))
        while self.turns < max_turns:
            reply = policy.reply(new)
            if reply.stop == "context_full":
                return Status.TOKEN_LIMIT, self._timed(self._env.grade)
            # A reply cut by "length" is an action like any other: at worst it is malformed.
            observation, reward, terminated, truncated, info = self._timed(
                self._env.step, reply.text
            )
            self.turns += 1
            self.malformed_calls += bool(info["malformed"])
            if terminated:
                return Status.FINISHED, reward
            assert not truncated, "limits belong to the loop, not to the environment"
            new = (Message("tool", observation),)
        return Status.TURN_LIMIT, self._timed(self._env.grade)

    def _timed(self, call: Callable[..., T], *args: object) -> T:
        start = time.monotonic()
        try:
            return call(*args)
        finally:
            self.env_seconds += time.monotonic() - start
