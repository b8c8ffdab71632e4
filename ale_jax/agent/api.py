"""The protocols between the agent loop and its two neighbours: the policy and the environment."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from ale_jax.sandbox.saved_state import SavedState


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
