"""When a run is saved, and how long it waits for what may never come."""

from __future__ import annotations

import dataclasses

from ale_jax.algo.hypers import require_at_least, require_range

A_DAY = 86400.0


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """When the state is saved. The end of the warm start and the last step are always saved.

    every: RL steps between checkpoints.
    keep: number of checkpoints that are kept, the newest ones.
    grace_seconds: how long a run that is told to stop may take to save its newest step.
    """

    every: int = 20
    keep: int = 2
    grace_seconds: float = 10.0

    def __post_init__(self) -> None:
        require_at_least(1, self, "every", "keep")
        require_range("grace_seconds", self.grace_seconds, 1.0, A_DAY, "it is in seconds")

    def is_due(self, step: int, last: int) -> bool:
        """last: the run's last step."""
        return step % self.every == 0 or step == last


@dataclasses.dataclass(frozen=True)
class DeadlinesConfig:
    """How long a run waits for what may never come.

    An attempt at an episode that misses one of the first three is cancelled, and its task is played
    again in another sandbox. They count the time of rollout worker, environment and sandbox. The
    policy's time does not count: a queue or a compilation is not the attempt's fault.

    placement_seconds: from the request until the agent's first question to the policy, i.e. for the
        sandbox to start, and for the task to be set up. Also for a rollout worker to start: one
        that has no node for so long is reported, and if there is no other, the run ends.
    turn_seconds: from a reply of the policy until the next question, or until the verdict.
    episode_seconds: all turns of an attempt together.
    outage_seconds: if every attempt fails for so long for reasons in the system, the run ends.
    watchdog_seconds: if nothing is finished for so long, the run says what it waits for.
    """

    placement_seconds: float = 120.0
    turn_seconds: float = 120.0
    episode_seconds: float = 1800.0
    outage_seconds: float = 600.0
    watchdog_seconds: float = 120.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            require_range(field.name, getattr(self, field.name), 0.1, A_DAY, "it is in seconds")
