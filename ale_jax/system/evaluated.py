"""The episodes that a run has played, written down as `ale-jax eval` does: those of an evaluation,
and those of a step."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from ale_jax.config.engine import Sampling
from ale_jax.data.replay import Group
from ale_jax.evaluation.episodes import EpisodeRecord, EpisodeWriter
from ale_jax.evaluation.plan import claim, described
from ale_jax.evaluation.players import record_of
from ale_jax.monitor.evaluations import EPISODES_DIR, EVALS_DIR, TRAINED
from ale_jax.records import Trajectory
from ale_jax.worlds.api import Message
from ale_jax.worlds.families import Families, Family

STEP = "step:"


def policy_name(step: int, path: Path) -> str:
    """Returns how the folder of an evaluation calls the policy of a run."""
    return f"{STEP}{step} of {path.resolve()}"


def write_episodes(
    path: Path,
    name: str,
    step: int,
    sampling: Sampling,
    played: tuple[Families, Sequence[Trajectory]],
) -> None:
    """Writes the episodes of a run's evaluation into its folder, in place of those that an
    interrupted one has left. path: of the run. played: the episodes, and their families."""
    families, trajectories = played
    folder = path / EVALS_DIR / name
    if folder.exists():
        shutil.rmtree(folder)
    names = sorted({each.episode.key.task.family for each in trajectories})
    claim(folder, described(names, policy_name(step, path), sampling))
    with EpisodeWriter(folder) as writer:
        for trajectory in trajectories:
            writer.write(record_of_trajectory(families, trajectory))


def write_trained(path: Path, step: int, families: Families, groups: Sequence[Group]) -> None:
    """Writes the episodes of a step's new groups in which the policy has written something. path:
    of the run."""
    folder = path / EPISODES_DIR / f"{TRAINED}{step}"
    folder.mkdir(parents=True)
    new = [each for group in groups if not group.is_reused for each in group.members]
    with EpisodeWriter(folder) as writer:
        for trajectory in new:
            if trajectory.sampled_turns:
                writer.write(record_of_trajectory(families, trajectory))


def record_of_trajectory(families: Families, trajectory: Trajectory) -> EpisodeRecord:
    """Returns an episode as it is written down, with its longest conversation."""
    family = families[trajectory.episode.key.task.family]
    return record_of(
        families,
        trajectory.episode,
        trajectory.num_policy_tokens,
        len(list(trajectory.sampled_turns)),
        list(_messages(trajectory, family)),
    )


def _messages(trajectory: Trajectory, family: Family) -> Iterator[Message]:
    """Of an agent's program, as far as its turns tell."""
    if family.world.system_prompt:
        yield Message("system", family.world.system_prompt)
    for number, turn in enumerate(trajectory.turns):
        if turn.prompt_text:
            yield Message(family.world.role if number else "user", turn.prompt_text)
        yield Message("assistant", turn.action_text)
