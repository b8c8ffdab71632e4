"""Which episodes an evaluation plays, and what is on its record: the same for the same line."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from ale_jax.config.engine import Sampling
from ale_jax.evaluation.episodes import EPISODES_FILE, ItemKey, read_result
from ale_jax.files import read_json, write_json
from ale_jax.records import EpisodeKey, Task
from ale_jax.worlds.families import Families, Family
from ale_jax.worlds.items import EVAL

SETTINGS_FILE = "eval.json"
ENDLESS = 100  # items of a family whose items have no end, unless a limit says otherwise
# How policies are sampled that are to be compared with others'. The paper's: arXiv 2512.24873.
SAMPLINGS = {
    "greedy": Sampling(temperature=0.0),
    "paper": Sampling(temperature=0.7, top_p=0.8, top_k=20),
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """The episodes of an evaluation: `samples` of each item.

    limit: the number of items, which the families share evenly; 0: all, and ENDLESS of those
    without end. split: of the items.
    """

    families: Families
    samples: int = 1
    limit: int = 0
    split: str = EVAL

    def __post_init__(self) -> None:
        if self.samples < 1 or self.limit < 0:
            raise ValueError(
                f"--samples={self.samples} must be at least 1, and --limit={self.limit} not "
                "negative (0 is no limit)"
            )

    def episodes(self) -> list[EpisodeKey]:
        """Returns all episodes. Those of a smaller limit, or of fewer samples, are among them with
        the same keys, and so with the same random numbers."""
        return [
            EpisodeKey("eval/command", place, sample, task)
            for sample in range(self.samples)
            for place, task in enumerate(self._tasks())
        ]

    def left(self, finished: Collection[tuple[ItemKey, int]]) -> list[EpisodeKey]:
        """Returns the episodes that are not finished."""
        return [key for key in self.episodes() if (self.item(key.task), key.member) not in finished]

    def item(self, task: Task) -> ItemKey:
        """Returns world, family and item, as they are written down."""
        return self.families[task.family].domain.world, task.family, task.item

    def _tasks(self) -> list[Task]:
        rounds = itertools.zip_longest(*(self._items(family) for family in self.families))
        tasks = [task for tasks in rounds for task in tasks if task]
        return tasks[: self.limit or None]

    def _items(self, family: Family) -> Iterator[Task]:
        count = family.items.count(self.split)
        for n in range((self.limit or ENDLESS) if count is None else count):
            items = family.items
            item = items.evaluation(n, n) if self.split == EVAL else items.train(0, n, n)
            yield Task(family.name, item, self.split)


def finished(folder: Path) -> set[tuple[ItemKey, int]]:
    """Returns the episodes that are in a folder already. ValueError if its file is damaged."""
    file = folder / EPISODES_FILE
    if not file.exists() or not file.stat().st_size:
        return set()
    return {(each.key, each.sample) for each in read_result(folder).episodes}


def claim(folder: Path, settings: dict[str, Any]) -> None:
    """Writes down how the episodes of a folder are played. ValueError, with what differs, if those
    that are there were played otherwise."""
    file = folder / SETTINGS_FILE
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_json(file, settings)
        return
    known = read_json(file)
    for name, value in settings.items():
        if known.get(name) != value:
            raise ValueError(
                f"{folder} holds episodes with {name} {known.get(name)!r:.80}, not {value!r:.80}: "
                "name another folder with --out"
            )


def described(families: Sequence[str], policy: str, sampling: Sampling) -> dict[str, Any]:
    """Returns what has to stay as it is while an evaluation goes on."""
    return {
        "policy": policy,
        "sampling": dataclasses.asdict(sampling),
        "families": list(families),
    }
