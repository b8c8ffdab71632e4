"""The interface of a world: what a task set has to say for its tasks to be trained on.

    class Sums(World):
        families = {"easy": Rows("easy.jsonl")}

        def reset(self, item, sandbox):
            self.answer = item["answer"]
            return item["question"]

        def step(self, reply):
            return Step(reward=float(reply.strip() == self.answer), done=True)

`reset` and `step` must be there; all else has a default, and what needs more than the default
refuses the family by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal, SupportsFloat

from ale_jax.sandbox.api import JudgedSandbox, SavedState
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.worlds.items import Item, Items
from ale_jax.worlds.replies import Reply
from ale_jax.worlds.tools import Tool

Role = Literal["system", "user", "assistant", "tool"]


@dataclasses.dataclass(frozen=True)
class Message:
    role: Role
    content: str


class VerifierError(RuntimeError):
    """The outcome could not be judged, and counts as neither right nor wrong."""


class VerdictRefusedError(VerifierError):
    """And it could not be judged if it were tried again, as with a key that is refused."""


class NoVerdictError(RuntimeError):
    """What the agent did keeps the verifier from a verdict, which counts as a failure."""


Rewards = SupportsFloat | Mapping[str, SupportsFloat]


@dataclasses.dataclass(frozen=True)
class Step:
    """What a reply of the policy led to.

    observation: what the policy reads next; a text is told in the world's `role`. Nobody reads it
    at the end.
    reward: of this step alone, a number or numbers by name, which the config weighs. The rewards of
    all steps add up to the episode's, and each belongs to the chunk that earned it.
    done: the episode has ended. truncated: the world cuts it short, which counts as its limit of
    turns; without an effect if it is done.
    malformed: the reply held no valid call. failed: it held none, or its call met an error.
    """

    observation: str | Sequence[Message] = ""
    reward: Rewards = 0.0
    done: bool = False
    truncated: bool = False
    malformed: bool = False
    failed: bool = False


@dataclasses.dataclass(frozen=True)
class Limits:
    """How long an episode may be; 0: as long as the run allows. turns: replies. reply_tokens: of
    one reply. context: tokens of prompts and replies together."""

    turns: int = 0
    reply_tokens: int = 0
    context: int = 0


class World:
    """The tasks of one kind. An object plays one episode at a time, and any number in a row.

    families: their items by name. A mapping may make them when they are asked for.
    system_prompt: what the policy is told before the task; "" for nothing.
    role: in which an observation that is a text is told.
    solved_at: the reward of an episode from which its task is solved; `reset` may change it.
    is_in_sandbox: the sandbox holds the whole task, so that a program of its own (external_agent)
        can play it; then `grade` judges the state that the program leaves.
    is_judged_apart: `verdict` judges each episode that has ended, after its sandbox is closed. So a
        slow verdict need not hold up other episodes (`rollout.reward_workers`), and one that fails
        with VerifierError is asked for again.
    nothing: the reply that ends an episode without doing anything.
    must_call: of a world with tools, each reply has to be a call, to which sampling is held.
    loop_tools: of a world that reads calls from the text of a reply, what a model may call whose
        template tells of tools (`agent.tools`).
    limits: of its episodes, unless the config says otherwise.

    All methods may raise SandboxError when the sandbox fails. Judging raises VerifierError when it
    fails, and NoVerdictError when what the agent did makes it impossible.
    """

    families: Mapping[str, Items] = {}
    system_prompt: str = ""
    role: Role = "user"
    solved_at: float = 1.0
    is_in_sandbox: bool = False
    is_judged_apart: bool = False
    nothing: str = ""
    must_call: bool = False
    loop_tools: Sequence[Tool] = ()
    limits: Limits = Limits()

    def reset(self, item: Item, sandbox: JudgedSandbox | None) -> str | Sequence[Message]:
        """Begins the episode of `item`; returns what the policy is told.

        sandbox: of this episode alone, from where `sandbox` says that one is needed; else None.
        """
        raise NotImplementedError

    def step(self, reply: Reply) -> Step:
        """Plays a reply of the policy: the text as it was written, of which `reply.calls` are its
        calls of tools. They are answered by messages of the role "tool", one each, in order."""
        raise NotImplementedError

    def grade(self, answer: str | None = None) -> Rewards:
        """Returns what ending in the current state earns, besides the steps: where a limit ends the
        episode, or a program of its own has played it. answer: the program's; None of our loop."""
        return 0.0

    def verdict(self) -> Rewards:
        """Returns what the episode that has ended earns, besides its steps and `grade`. It may be
        called by another thread than these, and needs no sandbox."""
        return 0.0

    def metrics(self) -> Mapping[str, SupportsFloat]:
        """Returns numbers by name that tell about the episode that has ended, and earn nothing. Is
        called after `verdict` if that judges."""
        return {}

    def save(self) -> SavedState | None:
        """Returns the current state; None if it can only be reached by playing."""
        return None

    def load(self, item: Item, sandbox: JudgedSandbox | None, saved: SavedState) -> bool:
        """Restores what `save` returned; False if that is not possible completely."""
        return False

    def oracle(self, item: Item) -> Sequence[str] | None:
        """Returns the replies that solve the task; None if nobody knows them."""
        return None

    def noisy_oracle(self, item: Item) -> Sequence[str] | None:
        """Returns replies that solve the task after errors; by default there are none."""
        return self.oracle(item)

    def tools(self, item: Item) -> Sequence[Tool]:
        """Returns what the policy may call, as OpenAI's API describes functions: {"type":
        "function", "function": {"name": ..., "description": ..., "parameters": a JSON schema}}."""
        return ()

    def sandbox(self, item: Item, spec: SandboxSpec) -> SandboxSpec | None:
        """Returns the sandbox that the task needs; None if it needs none. spec: the run's."""
        return None


def has_own(world: World, method: str) -> bool:
    """Tells whether a world defines a method that has a default."""
    return getattr(type(world), method) is not getattr(World, method)
