"""ale-jax validate --world=NAME, or --config=NAME for the worlds of a run"""

from __future__ import annotations

import ast
import dataclasses
import functools
import itertools
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ale_jax.config.agent import AgentLimits
from ale_jax.config.build import build_config, build_domain
from ale_jax.config.run import RunConfig
from ale_jax.config.worlds import Domain
from ale_jax.evaluation.validate import ItemReport, Played, Validator
from ale_jax.monitor.text import one_line
from ale_jax.records import Task
from ale_jax.rollout.play import EpisodeRunner
from ale_jax.sandbox.api import JudgedSandbox
from ale_jax.sandbox.runtime import Picked, pick_runtime
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.worlds.duplicates import Duplicate, near_duplicates
from ale_jax.worlds.families import Families, Family, PlayableFamilies, families_of
from ale_jax.worlds.finite import Finite
from ale_jax.worlds.items import EVAL, TRAIN

MAX_FAULTS_SHOWN = 20  # of a family
MAX_ALIKE_SHOWN = 5
FAULT_CHARS = 300
HEAD = f"{'family':<20}{'items':>7}{'oracle':>9}{'nothing':>9}  turns min/median/max"


@dataclasses.dataclass(frozen=True)
class Options:
    """world: as `--world`. items: of each family and split. runtime: "" for the config's, or auto.
    workers: episodes at once. json: instead of a table."""

    world: str = ""
    items: int = 20
    runtime: str = ""
    workers: int = 1
    json: bool = False

    def __post_init__(self) -> None:
        for name in ("items", "workers"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name}={getattr(self, name)} must be at least 1")


def run_validate(options: Options, values: Mapping[str, Any] | None) -> int:
    """Prints what is wrong with the items of some worlds. Returns the exit code, 1 if anything is.

    values: of a config, whose worlds are checked; None for that of `options.world`. ValueError for
    worlds that do not exist.
    """
    config = None if values is None else build_config(values)
    families, spec = _asked(options.world, config)
    runtime = options.runtime or (config.rollout.runtime if config else "auto")
    runner = EpisodeRunner(
        functools.partial(_start, runtime), PlayableFamilies(families, spec), AgentLimits()
    )
    found: dict[str, list[ItemReport]] = defaultdict(list)
    alike: dict[str, list[Duplicate]] = {}
    if not options.json:
        print(HEAD)
    try:
        for family in families:
            tasks = _tasks(family, options.items)
            found[family.name] += Validator(runner).check(family, tasks, options.workers)
            alike[family.name] = _near_duplicates(family)
            if not options.json:
                lines = _lines(family.name, found[family.name]), _told_alike(alike[family.name])
                print(*itertools.chain(*lines), sep="\n", flush=True)
    finally:
        runner.close()
    if options.json:
        print(json.dumps({name: _summary(found[name], alike[name]) for name in found}))
    faulty = [each for reports in found.values() for each in reports if each.faults]
    if faulty and not options.json:
        print(f"{len(faulty)} items have faults", file=sys.stderr)
    return 1 if faulty else 0


def _asked(world: str, config: RunConfig | None) -> tuple[Families, SandboxSpec]:
    if (config is None) != bool(world):
        raise ValueError("name either a world, with --world, or a config with --config")
    if config:
        return families_of(config), config.sandbox
    return Families((_domain(world),), ""), SandboxSpec()


def _domain(given: str) -> Domain:
    """Returns the domain of a world's name, or of a domain as configs write it."""
    if not given.startswith("{"):
        return Domain(given)
    try:
        values = ast.literal_eval(given)
    except (ValueError, SyntaxError) as error:
        raise ValueError(f"--world={given!r:.80} is no dict: {error}") from None
    return build_domain(values)


@functools.cache
def _runtime(name: str, spec: SandboxSpec) -> Picked:
    return pick_runtime(name, spec)


def _start(runtime: str, spec: SandboxSpec) -> JudgedSandbox:
    return _runtime(runtime, spec).start(spec, {"role": "validate"})


def _tasks(family: Family, wanted: int) -> list[Task]:
    """Returns the first items of both splits, `wanted` of each or all."""
    tasks = []
    for split in (TRAIN, EVAL):
        count = family.items.count(split)
        for n in range(wanted if count is None else min(count, wanted)):
            item = family.items.train(0, n, n) if split == TRAIN else family.items.evaluation(n, n)
            tasks.append(Task(family.name, item, split))
    return tasks


def _lines(family: str, reports: Sequence[ItemReport]) -> Iterator[str]:
    told = _summary(reports)
    turns, oracle = told["turns"], f"{told['oracle']}/{told['with_oracle']}"
    spread = f"{turns[0]} / {turns[1]:g} / {turns[2]}" if turns else "no oracle"
    nothing = f"{told['nothing']}/{told['items']}"
    yield f"{family:<20}{told['items']:>7}{oracle:>9}{nothing:>9}  {spread}"
    faults = [(each["item"], each["fault"]) for each in told["faults"]]
    for item, fault in faults[:MAX_FAULTS_SHOWN]:
        yield f"  item {item!r:.80}: {one_line(fault, FAULT_CHARS)}"
    if len(faults) > MAX_FAULTS_SHOWN:
        yield f"  and {len(faults) - MAX_FAULTS_SHOWN} more"


def _near_duplicates(family: Family) -> list[Duplicate]:
    return list(near_duplicates(family.items)) if isinstance(family.items, Finite) else []


def _told_alike(found: Sequence[Duplicate]) -> Iterator[str]:
    for each in found[:MAX_ALIKE_SHOWN]:
        yield (
            f"  item {each.evaluated!r:.80} is evaluated, and training has {each.share:.0%} of its "
            f"wording in {each.trained!r:.80}"
        )
    if len(found) > MAX_ALIKE_SHOWN:
        yield f"  and {len(found) - MAX_ALIKE_SHOWN} more near duplicates"


def _summary(reports: Sequence[ItemReport], alike: Sequence[Duplicate] = ()) -> dict[str, Any]:
    """Returns what `--json` tells of a family. oracle, nothing: items that it solved each time.
    turns: of the oracle: least, median, most."""
    turns = [each.oracle[0].episode.turns for each in reports if each.oracle]
    return {
        "items": len(reports),
        "with_oracle": len(turns),
        "oracle": sum(_solves(each.oracle) for each in reports),
        "nothing": sum(_solves(each.nothing) for each in reports),
        "turns": [min(turns), statistics.median(turns), max(turns)] if turns else [],
        "faults": [
            {"item": each.task.item, "split": each.task.split, "fault": fault}
            for each in reports
            for fault in each.faults
        ],
        "near_duplicates": [dataclasses.asdict(each) for each in alike],
    }


def _solves(plays: Sequence[Played]) -> bool:
    return bool(plays) and all(each.is_solved for each in plays)
