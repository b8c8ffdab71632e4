"""Which episodes an evaluation plays, and what is on its record: the same for the same line."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ale_jax.config.engine import Sampling
from ale_jax.config.fields import flat
from ale_jax.config.run import RunConfig
from ale_jax.evaluation.episodes import EPISODES_FILE, ItemKey, read_result
from ale_jax.files import read_json, write_json
from ale_jax.records import EpisodeKey, Task
from ale_jax.worlds.families import Families, Family
from ale_jax.worlds.items import EVAL

SETTINGS_FILE = "eval.json"
LEASE_DIR = "lease"  # as in `system.lease`
MOST = 1_000_000  # episodes, which are held in memory
ENDLESS = 100  # items of a family whose items have no end, unless a limit says otherwise
# Fields that decide how an episode goes, whoever plays it.
PLAYED = (
    *("worlds.train", "worlds.held_out", "sandbox.", "engine.max_sequence_length"),
    "tokenizer.chat_template_kwargs",
)
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
        the same keys, and so with the same random numbers. ValueError if they are more than
        MOST."""
        tasks = [] if self.limit > MOST else self._tasks()
        if self.limit > MOST or self.samples * len(tasks) > MOST:
            raise ValueError(
                f"--samples={self.samples} and --limit={self.limit} ask for more than {MOST} "
                "episodes: lower them"
            )
        return [
            EpisodeKey("eval/command", place, sample, task)
            for sample in range(self.samples)
            for place, task in enumerate(tasks)
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


def claim(folder: Path, settings: Mapping[str, Any]) -> None:
    """Writes down how the episodes of a folder are played. Errors as of `require_same`."""
    if not require_same(folder, settings):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / SETTINGS_FILE, settings)


def require_same(folder: Path, settings: Mapping[str, Any]) -> bool:
    """Returns whether a folder tells already how its episodes are played.

    ValueError, with what differs, if they are played otherwise, or the folder holds something else
    than an evaluation.
    """
    file = folder / SETTINGS_FILE
    if not file.exists():
        _require_empty(folder)
        return False
    known = read_json(file)
    if not isinstance(known, dict):
        raise ValueError(f"{file}: damaged (it holds no settings): name another folder with --out")
    for name, value in json.loads(json.dumps(settings)).items():
        if name not in known:
            raise ValueError(
                f"{file} does not tell {name}, as older versions did not: name another folder with "
                "--out"
            )
        if known[name] != value:
            raise ValueError(
                f"{folder} holds episodes with {name} {known[name]!r:.80}, not {value!r:.80}: "
                "name another folder with --out"
            )
    return True


def _require_empty(folder: Path) -> None:
    others = sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []
    # A start that failed leaves its lease, or a part of a file.
    others = [name for name in others if name != LEASE_DIR and not name.startswith(".")]
    if others:
        raise ValueError(
            f"{folder} is not empty and holds no evaluation, but {others[0]!r:.80}: name a new "
            "folder with --out"
        )


def described(families: Sequence[str], policy: str, sampling: Sampling) -> dict[str, Any]:
    """Returns what has to stay as it is while an evaluation goes on."""
    return {
        "policy": policy,
        "sampling": dataclasses.asdict(sampling),
        "families": list(families),
    }


def described_play(config: RunConfig, split: str) -> dict[str, Any]:
    """Returns what has to stay as it is, too, where the config is not that of a run."""
    values = flat(config.to_json())
    fields = {name: value for name, value in values.items() if name.startswith(PLAYED)}
    return {"split": split, **fields}
