"""The oracles' episodes as conversations with real worlds, for the warm start."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ale_jax.agent.loop import ScriptedPolicy, play
from ale_jax.agent.recording import RecordingPolicy
from ale_jax.config.agent import AgentLimits
from ale_jax.records import Episode, EpisodeKey, Task
from ale_jax.sandbox.api import JudgedSandbox
from ale_jax.worlds.api import Message
from ale_jax.worlds.families import Family


@dataclasses.dataclass(frozen=True)
class Transcript:
    """messages: what the world told, and the replies as an assistant's, with which they end.
    failed: for each assistant message, whether its call failed. tools: those that the agent offered
    beside the messages. reward: of the episode."""

    task: Task
    messages: tuple[Message, ...]
    failed: tuple[bool, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    reward: float = 1.0


def demonstration(
    family: Family, sandbox: JudgedSandbox | None, task: Task, noisy: bool = False
) -> Transcript:
    """Returns the oracle's transcript of `task`. noisy: of the oracle that makes errors.

    Raises:
      RuntimeError: the oracle did not solve the task.
    """
    episode, transcript = play_oracle(family, sandbox, task, noisy)
    if episode.reward is None or not episode.is_solved:
        raise RuntimeError(f"the oracle of {task} ended in {episode}")
    return transcript


def play_oracle(
    family: Family, sandbox: JudgedSandbox | None, task: Task, noisy: bool = False
) -> tuple[Episode, Transcript]:
    """Plays the world's own solution; returns the episode and its transcript."""
    replies = family.oracle(task, noisy)
    policy, world = RecordingPolicy(ScriptedPolicy(replies)), family.checked(task, sandbox)
    key = EpisodeKey(phase="oracle", group=task.number, member=0, task=task)
    episode = play(world, policy, key, AgentLimits(turns=len(replies)))
    messages, failed = tuple(policy.messages), tuple(world.failed)
    tools, reward = family.offer(task).tools, episode.reward or 0.0
    return episode, Transcript(task, messages, failed, tools, reward)
