"""The engines that episodes talk to, and the choice among them.

Where several processes train together, each has an engine with a ledger and a gateway of its own. A
rollout worker talks to the gateway directly, so that text and tokens do not pass through the
controller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

from ale_jax.config.engine import Sampling
from ale_jax.engine.router import Router
from ale_jax.gateway.custody.ledger import Activity
from ale_jax.monitor.timeline import Timeline
from ale_jax.records import Episode, EpisodeKey, Trajectory, Turn
from ale_jax.system.rollouts.episode_lanes import EpisodeLanes


class Conversations(Protocol):
    """The part of a ledger that the controller uses; see `gateway.custody.ledger.Ledger`."""

    def open(
        self,
        name: str,
        key: EpisodeKey,
        sampling: Sampling,
        prefix_turns: tuple[Turn, ...],
        redraw: int,
    ) -> None: ...

    def activity(self, name: str) -> Activity: ...

    def stop(self, name: str) -> None: ...

    def replies(self, name: str) -> Sequence[tuple[float, float]]: ...

    def start_version(self, name: str) -> int | None: ...

    def close(self, name: str, episode: Episode | None) -> Trajectory | None: ...


@dataclasses.dataclass(frozen=True)
class PolicyReplica:
    """An engine. url: of the gateway to it. sampled_tokens: counts since the start."""

    conversations: Conversations
    url: str
    sampled_tokens: Callable[[], int]


class PolicyReplicas:
    """One thread calls all methods but `sampled_tokens`."""

    def __init__(self, replicas: Sequence[PolicyReplica], timeline: Timeline | None = None):
        """timeline: on which the episodes are recorded."""
        self._replicas = replicas
        self._lanes = EpisodeLanes(timeline) if timeline else None
        self._of: dict[str, tuple[int, tuple[str, int]]] = {}  # conversation -> replica, its group
        self._router = Router(len(replicas))

    def open(
        self,
        name: str,
        key: EpisodeKey,
        sampling: Sampling,
        prefix_turns: tuple[Turn, ...],
        redraw: int,
    ) -> str:
        """Opens a conversation; returns the URL of the gateway that serves it."""
        group = key.phase, key.group
        number = self._router.enter(group)
        self._of[name] = number, group
        replica = self._replicas[number]
        if self._lanes:
            self._lanes.begin(name, key)
        replica.conversations.open(name, key, sampling, prefix_turns, redraw)
        return replica.url

    def activity(self, name: str) -> Activity:
        return self._conversations(name).activity(name)

    def stop(self, name: str) -> None:
        self._conversations(name).stop(name)

    def start_version(self, name: str) -> int | None:
        return self._conversations(name).start_version(name)

    def leave(self, name: str) -> None:
        """Says that an episode asks for no more replies, and that its place is free."""
        self.stop(name)
        if self._lanes:
            self._lanes.leave(name)

    def begin_verdict(self, name: str) -> None:
        """Says that a reward worker judges an episode that has left its place."""
        if self._lanes:
            self._lanes.begin_verdict(name)

    def end_verdict(self, name: str) -> None:
        """Says that the reward worker of an episode is free, if it had one."""
        if self._lanes:
            self._lanes.end_verdict(name)

    def close(self, name: str, episode: Episode | None) -> Trajectory | None:
        conversations = self._conversations(name)
        if self._lanes:
            self._lanes.end(name, conversations.replies(name), episode)
        self._router.leave(*self._of.pop(name))
        return conversations.close(name, episode)

    def sampled_tokens(self) -> int:
        """Returns the tokens that all engines have sampled since the start."""
        return sum(replica.sampled_tokens() for replica in self._replicas)

    def _conversations(self, name: str) -> Conversations:
        return self._replicas[self._of[name][0]].conversations
