"""Evaluations: one attempt at each of a fixed list of unseen tasks, counted per family."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ale_jax.monitor.evaluations import Evaluation, FamilyResult
from ale_jax.records import Slot, Trajectory
from ale_jax.system.config import EvalConfig, WorldsConfig
from ale_jax.system.tasks import evaluation


def evaluation_slots(name: str, config: EvalConfig, worlds: WorldsConfig) -> list[Slot]:
    """Unseen tasks of the trained families, then of the held-out ones."""
    return [
        *evaluation(name, config.tasks, worlds.train_families),
        *evaluation(f"{name}/held_out", config.held_out_tasks, worlds.held_out_families),
    ]


def require_judged(evaluation: Evaluation, episodes: int) -> None:
    """RuntimeError if less than half of the episodes could be judged: a rate over those that were
    quicker than what broke is none of the policy."""
    if 2 * evaluation.judged < episodes:
        raise RuntimeError(
            f"of {episodes} episodes of evaluation {evaluation.name} only {evaluation.judged} "
            "could be judged: events.jsonl says how the others ended; the same command goes on"
        )


def tally(
    name: str,
    step: int,
    seconds: float,
    trajectories: Sequence[Trajectory],
    worlds: WorldsConfig,
) -> Evaluation:
    """Successes per family. An episode that the system could not finish, retries included, is no
    judgement of the policy and is left out of the count."""
    tasks, successes = Counter(), Counter()
    for trajectory in trajectories:
        episode = trajectory.episode
        if episode.reward is not None:
            tasks[episode.slot.task.family] += 1
            successes[episode.slot.task.family] += episode.reward > 0
    families = {
        family: FamilyResult(successes[family], tasks[family], family in worlds.held_out_families)
        for family in (*worlds.train_families, *worlds.held_out_families)
        if tasks[family]
    }
    return Evaluation(name, step, seconds, families)
