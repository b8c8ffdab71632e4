"""The tasks of training, warm start and evaluations, as pure functions of seed and position."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence

from ale_jax.config.run import RunConfig
from ale_jax.config.worlds import Domain, EvalConfig
from ale_jax.data.quotas import Quotas
from ale_jax.records import EpisodeKey, Task
from ale_jax.worlds.families import Families, families_of
from ale_jax.worlds.items import EVAL, TRAIN
from ale_jax.worlds.meeting import require_apart


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Which tasks a run plays. train, held_out, demonstrated: its domains, each once in `families`.
    distinct: as `WorldsConfig.tasks_per_family`."""

    families: Families
    train: tuple[Domain, ...]
    held_out: tuple[Domain, ...]
    demonstrated: tuple[Domain, ...]
    seed: int
    distinct: int = 0

    @classmethod
    def of(cls, config: RunConfig) -> Schedule:
        """ValueError if a world or family does not exist."""
        families = families_of(config)
        worlds, shown = config.worlds, config.demonstrated
        return cls(
            families, worlds.train, worlds.held_out, shown, config.seed, worlds.tasks_per_family
        )

    @property
    def train_families(self) -> tuple[str, ...]:
        """The names of the families that are trained on."""
        return self.families.of(*self.train)

    @property
    def held_out_families(self) -> tuple[str, ...]:
        """The names of those that are only evaluated."""
        return self.families.of(*self.held_out)

    @property
    def train_count(self) -> int:
        """The number of distinct training tasks; 0: there is no end of them."""
        return self.distinct * len(self.train_families)

    def first_tasks(self) -> list[Task]:
        """Returns one task of each family."""
        names = dict.fromkeys(
            (*self.train_families, *self.held_out_families, *self.families.of(*self.demonstrated))
        )
        return [self.families[name].first() for name in names]

    def check(self, config: RunConfig) -> None:
        """Raises ValueError if a family has too few items for what the config asks of it, or trains
        on rows that another one evaluates."""
        for name in self.train_families:
            self._require(name, TRAIN, 1, "trained on")
        for name in (*self.train_families, *(self.held_out_families)):
            self._require(name, EVAL, 1, "evaluated")
        self._require_apart(self.train)
        if not (warm := config.warm_start).max_steps:
            return
        self._require_apart(self.demonstrated)
        names = self.families.of(*self.demonstrated)
        if not names:
            return
        each = warm.transcripts_per_family + -(-warm.probe_tasks // len(names))
        for name in names:
            self._require(name, TRAIN, each, "demonstrated and probed in the warm start")

    def _require_apart(self, learned: Sequence[Domain]) -> None:
        played = (*self.train, *self.held_out)
        trained, evaluated = (
            [self.families[name] for name in self.families.of(*domains)]
            for domains in (learned, played)
        )
        require_apart(trained, evaluated)

    def is_evaluated(self, family: str, item: int | str) -> bool:
        """Returns whether an item may be played in the run's evaluations, so that nothing may be
        learned from it. family: by its name in a run, whichever world that is of."""
        if family not in (*self.train_families, *self.held_out_families):
            return False
        known = self.families[family]
        try:
            known.items.find(known.own_name, item, EVAL)
        except ValueError:
            return family in self.held_out_families
        return True

    def _require(self, name: str, split: str, wanted: int, use: str) -> None:
        found = self.families[name].items.count(split)
        if found is not None and found < wanted:
            raise ValueError(
                f"family {name} has {found} items in its split {split!r}, and {wanted} are to be "
                f"{use}: lower that number, or divide the items otherwise (docs/worlds.md)"
            )

    def train_task(self, number: int) -> Task:
        """Returns the training task `number`. Domains come up by their ratios, and the families of
        one in turn."""
        domain = self._quotas.domain(number)
        nth = self._quotas.before(domain, number)
        names = self.families.of(self.train[domain])
        if self.distinct:
            nth %= self.distinct * len(names)
        name = names[nth % len(names)]
        item = self.families[name].items.train(self.seed, nth, nth // len(names))
        return Task(name, item, TRAIN)

    @functools.cached_property
    def _quotas(self) -> Quotas:
        return Quotas.of_ratios([domain.ratio for domain in self.train])

    def demonstrations(self, domain: Domain, count: int) -> list[Task]:
        """Returns the warm start's tasks: `count` of each family, from the training split."""
        names = self.families.of(domain)
        lists = [self.families[name].items.demonstrated(self.seed, count) for name in names]
        rounds = itertools.zip_longest(*lists)
        return [
            Task(name, item, TRAIN)
            for items in rounds
            for name, item in zip(names, items, strict=True)
            if item is not None
        ]

    def probes(self, count: int) -> list[Task]:
        """Returns the unseen tasks on which the warm start decides when to stop."""
        names, tasks = self.families.of(*self.demonstrated), []
        for draw in range(count):
            nth, place = divmod(draw, len(names))
            item, split = self.families[names[place]].items.probe(self.seed, draw, nth)
            tasks.append(Task(names[place], item, split))
        return tasks

    def evaluation(self, name: str, config: EvalConfig) -> list[EpisodeKey]:
        """Returns one attempt at each unseen task of the trained families, and then of the held-out
        ones: the same in every run and every evaluation."""
        return [
            *self._keys(name, config.tasks, self.train_families),
            *self._keys(f"{name}/held_out", config.held_out_tasks, self.held_out_families),
        ]

    def _keys(self, name: str, count: int, names: Sequence[str]) -> list[EpisodeKey]:
        """Returns `count` tasks, evenly of all families; finite ones give an item at most once."""
        tasks = []
        for draw in range(count):
            nth, place = divmod(draw, len(names))
            items = self.families[names[place]].items
            last = items.count(EVAL)
            if last is None or nth < last:
                tasks.append(Task(names[place], items.evaluation(draw, nth), EVAL))
        return [EpisodeKey(f"eval/{name}", i, 0, task) for i, task in enumerate(tasks)]
