"""Small evaluations, made up."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path

from ale_jax.evaluation.episodes import EpisodeRecord, EpisodeWriter, Result
from ale_jax.status import Status

SOLVED = EpisodeRecord(
    world="sums",
    family="easy",
    item=0,
    sample=0,
    status=Status.FINISHED,
    reward=1.0,
    rewards={"answer": 1.0},
    solved=True,
    turns=1,
    policy_tokens=12,
    truncated=False,
    seconds=0.5,
    metadata={"level": 1},
    messages=({"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "2"}),
    world_digest="d1",
)


def episode(item: str | int, sample: int, mark: str, **changes: object) -> EpisodeRecord:
    """mark: 1 solved, 0 wrong, T wrong at a limit, ? without a verdict."""
    told = {
        "1": {},
        "0": {"reward": 0.0, "rewards": {"answer": 0.0}, "solved": False},
        "T": {"reward": 0.0, "rewards": {}, "solved": False, "truncated": True},
        "?": {"reward": None, "rewards": {}, "solved": False, "status": Status.VERIFIER_ERROR},
    }[mark]
    return dataclasses.replace(SOLVED, item=item, sample=sample, **{**told, **changes})


def result(name: str, marks: Mapping[str | int, str] | Iterable[str], **changes: object) -> Result:
    """marks: of each item's samples, by item, or of items 0, 1, ..."""
    items = marks if isinstance(marks, Mapping) else dict(enumerate(marks))
    return Result(
        name,
        tuple(
            episode(item, sample, mark, **changes)
            for item, its in items.items()
            for sample, mark in enumerate(its)
        ),
    )


def write(folder: Path, its: Result) -> Path:
    with EpisodeWriter(folder) as writer:
        for each in its.episodes:
            writer.write(each)
    return folder
