"""The oracles' episodes as conversations, with what the sandbox really answered: the warm start."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from ale_jax.agent.api import Message, Policy, Reply
from ale_jax.agent.loop import AgentLimits, ScriptedPolicy, play
from ale_jax.agent.tools import render_tool_call
from ale_jax.records import Episode, Slot, Task
from ale_jax.sandbox.api import Sandbox
from envs.shell.env import ShellEnv
from envs.shell.families import generate


@dataclasses.dataclass(frozen=True)
class Transcript:
    """messages: system, user, then assistant and tool in turn; the last is the call of finish."""

    task: Task
    messages: tuple[Message, ...]


class RecordingPolicy:
    """Keeps the whole conversation of the policy that it wraps."""

    def __init__(self, policy: Policy):
        self._policy = policy
        self.messages: list[Message] = []

    def reply(self, new_messages: Sequence[Message]) -> Reply:
        self.messages.extend(new_messages)
        reply = self._policy.reply(new_messages)
        self.messages.append(Message("assistant", reply.text))
        return reply


def collect(
    sandbox: Sandbox, families: Iterable[str], seeds: Iterable[int], split: str = "train"
) -> list[Transcript]:
    """One transcript per seed and family, seeds outermost so that families alternate.

    Raises:
      RuntimeError: an oracle did not earn its reward; there is nothing to learn from it.
    """
    families = tuple(families)
    return [
        _transcript(sandbox, Task(family, seed, split)) for seed in seeds for family in families
    ]


def _transcript(sandbox: Sandbox, task: Task) -> Transcript:
    episode, messages = play_oracle(sandbox, task)
    if episode.reward != 1.0:
        raise RuntimeError(f"the oracle of {task} ended in {episode}")
    return Transcript(task, messages)


def play_oracle(sandbox: Sandbox, task: Task) -> tuple[Episode, tuple[Message, ...]]:
    """Plays what the generator knows to be right; returns how it ended and what was said."""
    calls = generate(task.family, task.seed).oracle
    policy = RecordingPolicy(ScriptedPolicy([render_tool_call(call) for call in calls]))
    env = ShellEnv(task.family, sandbox, task.split)
    slot = Slot(phase="oracle", group=task.seed, member=0, task=task)
    episode = play(env, policy, slot, AgentLimits(turns=len(calls)))
    return episode, tuple(policy.messages)
