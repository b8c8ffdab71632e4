"""The protocol between the agent loop and the policy, and the memory of states.

States that were slow to reach are kept, so that a later episode with the same prefix does not have
to replay it.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Literal, Protocol

from ale_jax.records import Prefix, Task
from ale_jax.sandbox.api import SavedState
from ale_jax.worlds.api import Message


@dataclasses.dataclass(frozen=True)
class Reply:
    """What the policy wrote in one call.

    stop: "stop": the policy ended its reply; "length": the reply was cut at its token limit;
    "context_full": the context is full, so there will be no further reply.
    """

    text: str
    stop: Literal["stop", "length", "context_full"]


class PolicyError(RuntimeError):
    """The policy's engine did not answer."""


class AgentError(RuntimeError):
    """The agent's program could not be started."""


class Policy(Protocol):
    """One episode's conversation. Every episode has a new one."""

    def reply(self, new_messages: Sequence[Message]) -> Reply:
        """Continues the conversation with the messages added since the last reply. The first time,
        these are all that it begins with, the replies of a prefix included.

        Raises:
          PolicyError: the engine did not answer.
        """


@dataclasses.dataclass(frozen=True)
class ReachedState:
    """A state after some turns of an episode. step_rewards: what these turns earned. told: the
    conversation up to there, the replies included. rewards: as of an `Episode`, up to there."""

    saved: SavedState
    step_rewards: tuple[float, ...]
    told: tuple[Message, ...]
    rewards: tuple[tuple[str, float], ...] = ()


Key = tuple[Task, Prefix]

# A command takes a millisecond. Saving and restoring a snapshot of some megabytes takes fifty, and
# what the session holds besides files may be lost. So a state is only kept if its replay is slow.
SLOW_S = 0.2
MAX_BYTES = 64 << 20
MAX_STATES = 1024  # their keys hold everything that was read on the way to them


class StateMemory:
    """States by task and prefix; the least recently used are evicted first. Thread-safe."""

    def __init__(self, slow_s: float = SLOW_S, max_bytes: int = MAX_BYTES):
        """slow_s: replays that take longer are worth keeping."""
        self._slow_s, self._max_bytes = slow_s, max_bytes
        self._states: dict[Key, ReachedState | None] = {}  # None: it cannot be restored
        self._lock = threading.Lock()

    def get(self, key: Key) -> ReachedState | None:
        with self._lock:
            if self._states.get(key) is None:
                return None
            self._states[key] = self._states.pop(key)  # most recently used last
            return self._states[key]

    def wants(self, key: Key, seconds: float) -> bool:
        """Returns whether to keep a state that took `seconds` to reach."""
        with self._lock:
            return seconds > self._slow_s and key not in self._states

    def keep(self, key: Key, state: ReachedState | None) -> None:
        """state: None if it cannot be restored, and should not be tried again."""
        with self._lock:
            self._states[key] = state
            while self._bytes() > self._max_bytes or len(self._states) > MAX_STATES:
                del self._states[next(iter(self._states))]

    def _bytes(self) -> int:
        return sum(len(state.saved.files) for state in self._states.values() if state is not None)
