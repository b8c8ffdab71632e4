"""The oracles' episodes as conversations with real environments, for the warm start."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsFloat

from ale_jax.agent.api import Environment, Message, Policy, Reply
from ale_jax.agent.loop import ScriptedPolicy, play
from ale_jax.config.agent import AgentLimits
from ale_jax.envs.registry import kind_of, make_env
from ale_jax.records import Episode, EpisodeKey, Task
from ale_jax.sandbox.api import Sandbox


@dataclasses.dataclass(frozen=True)
class Transcript:
    """messages: system, user, and then alternating assistant and tool messages, unless an agent's
    program plays, which may send others; the last one is an assistant's. failed: for each assistant
    message, whether its call failed. tools: those that the agent offered beside the messages.
    reward: of the episode."""

    task: Task
    messages: tuple[Message, ...]
    failed: tuple[bool, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    reward: float = 1.0


class RecordingPolicy:
    """Records the whole conversation of the policy that it wraps."""

    def __init__(self, policy: Policy):
        self._policy = policy
        self.messages: list[Message] = []

    def reply(self, new_messages: Sequence[Message]) -> Reply:
        self.messages.extend(new_messages)
        reply = self._policy.reply(new_messages)
        self.messages.append(Message("assistant", reply.text))
        return reply


class RecordingEnvironment:
    """Records for each step of the environment that it wraps whether it failed."""

    def __init__(self, env: Environment):
        self._env = env
        self.failed: list[bool] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, Mapping[str, Any]]:
        answer = self._env.step(action)
        self.failed.append(bool(answer[-1].get("failed", False)))
        return answer


def collect(
    sandbox: Sandbox | None, families: Iterable[str], seeds: Iterable[int], split: str = "train"
) -> list[Transcript]:
    """One transcript per seed and family. Seeds are the outer loop, so that families alternate.

    Raises:
      RuntimeError: an oracle did not solve its task, so its transcript is not a demonstration.
    """
    families = tuple(families)
    return [
        demonstration(sandbox, Task(family, seed, split)) for seed in seeds for family in families
    ]


def demonstration(sandbox: Sandbox | None, task: Task, noisy: bool = False) -> Transcript:
    """The oracle's transcript of `task`. noisy: whether to use the oracle that makes errors.

    Raises:
      RuntimeError: the oracle did not solve the task.
    """
    episode, transcript = play_oracle(sandbox, task, noisy)
    if episode.reward is None or not episode.is_solved:
        raise RuntimeError(f"the oracle of {task} ended in {episode}")
    return transcript


def play_oracle(
    sandbox: Sandbox | None, task: Task, noisy: bool = False
) -> tuple[Episode, Transcript]:
    """Plays the generator's solution; returns the episode and its transcript."""
    kind = kind_of(task.family)
    replies = (kind.noisy if noisy else kind.oracle)(task.family, task.seed)
    policy = RecordingPolicy(ScriptedPolicy(replies))
    env = RecordingEnvironment(make_env(task, sandbox))
    key = EpisodeKey(phase="oracle", group=task.seed, member=0, task=task)
    episode = play(env, policy, key, AgentLimits(turns=len(replies)))
    messages, failed = tuple(policy.messages), tuple(env.failed)
    return episode, Transcript(task, messages, failed, reward=episode.reward or 0.0)
