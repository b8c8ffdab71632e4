"""The protocols between the agent loop, the policy and the environment, and the memory of states.

States that were slow to reach are kept, so that a later episode with the same prefix need not
replay it.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from ale_jax.records import Prefix, Task
from ale_jax.sandbox.api import SavedState


@dataclasses.dataclass(frozen=True)
class Message:
    role: Literal["system", "user", "assistant", "tool"]
    content: str


@dataclasses.dataclass(frozen=True)
class Reply:
    """What the policy wrote in one call.

    stop: "stop" the policy ended its reply; "length" the reply was cut at its token limit;
    "context_full" the context was, so there will be no other reply.
    """

    text: str
    stop: Literal["stop", "length", "context_full"]


class PolicyError(RuntimeError):
    """The policy's engine did not answer."""


class VerifierError(RuntimeError):
    """The outcome could not be judged; it is neither right nor wrong."""


class Policy(Protocol):
    """One episode's conversation; a new one for every episode."""

    def reply(self, new_messages: Sequence[Message]) -> Reply:
        """Continues the conversation with the messages added since the last reply.

        Raises:
          PolicyError: the engine did not answer.
        """


class Environment(Protocol):
    """GEM's contract (text in, text out), and `grade` for an episode that is cut short.

    system_prompt: what the policy is told before the instruction. All three methods raise
    SandboxError when the sandbox fails, VerifierError when judging does.
    """

    system_prompt: str

    def reset(self, seed: int) -> tuple[str, Mapping[str, Any]]:
        """Builds the world of `seed`; returns the instruction and an info."""

    def step(self, action: str) -> tuple[str, float, bool, bool, Mapping[str, Any]]:
        """Returns observation, reward, terminated, truncated, info (`malformed`: no valid call;
        `failed`: none, or one that met an error)."""

    def grade(self) -> float:
        """The reward of the state as it stands, with no answer given. Ends the episode."""

    def save(self) -> SavedState | None:
        """The state as it stands, for `load`; None if it cannot be put back."""

    def load(self, seed: int, saved: SavedState) -> bool:
        """In place of `reset` and the steps that led to `saved`, a state of the same seed. False if
        the state could not be put back whole: then only a reset helps."""


Key = tuple[Task, Prefix]

# A command takes a millisecond, a snapshot of some megabytes and its way back fifty, and what the
# session holds beside files may turn out to be lost: so a state is kept where the replay is slow.
SLOW_S = 0.2
MAX_BYTES = 64 << 20
MAX_STATES = 1024  # their keys hold all that was read on the way there


class StateMemory:
    """By task and prefix; those not used for longest are forgotten first. Thread-safe."""

    def __init__(self, slow_s: float = SLOW_S, max_bytes: int = MAX_BYTES):
        """slow_s: replays that take longer are worth keeping."""
        self._slow_s, self._max_bytes = slow_s, max_bytes
        self._states: dict[Key, SavedState | None] = {}  # None: files alone do not bring it back
        self._lock = threading.Lock()

    def get(self, key: Key) -> SavedState | None:
        with self._lock:
            if self._states.get(key) is None:
                return None
            self._states[key] = self._states.pop(key)  # the last one used stands last
            return self._states[key]

    def wants(self, key: Key, seconds: float) -> bool:
        """Whether a state is to be kept that took `seconds` to get to."""
        with self._lock:
            return seconds > self._slow_s and key not in self._states

    def keep(self, key: Key, state: SavedState | None) -> None:
        """state: None if it cannot be put back, and is not to be tried again."""
        with self._lock:
            self._states[key] = state
            while self._bytes() > self._max_bytes or len(self._states) > MAX_STATES:
                del self._states[next(iter(self._states))]

    def _bytes(self) -> int:
        return sum(len(state.files) for state in self._states.values() if state is not None)
