"""Do training and evaluation ever play the same task, and an evaluation each of its own once?

Runs are made up: families of seeds and of rows, of which many are equal; several domains; lives
that end anywhere, and groups that fail. What they play comes from the schedule, the gate, the task
stream and the cursor of a checkpoint, as in a run.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ale_jax.config.worlds import Domain, EvalConfig
from ale_jax.data.quotas import Quotas
from ale_jax.data.staleness import Drop, StalenessGate
from ale_jax.evaluation.episodes import EpisodeWriter
from ale_jax.evaluation.plan import Plan, finished
from ale_jax.evaluation.players import record_of
from ale_jax.records import Episode, EpisodeKey, Task
from ale_jax.status import Status
from ale_jax.system.tasks import Cursor, GroupStream
from ale_jax.worlds.families import Families, open_families
from ale_jax.worlds.schedule import Schedule

WORLD = """
from ale_jax.worlds import Rows, Seeds, Step, World

class Made(World):
    families = {
        "shared": Rows("a.jsonl", eval_share=0.3), "also": Rows("b.jsonl", eval_share=0.3),
        "apart": Rows("c.jsonl", eval_path="d.jsonl"), "seeds": Seeds(),
    }

    def reset(self, item, sandbox):
        return str(item.name)

    def step(self, reply):
        return Step(done=True)
"""
FILES = {"a": "ab", "b": "ab", "c": "cd", "d": "cd"}  # each has texts of one of two pools
TEXTS, LINES = 40, 60  # of a pool; of a file, so that many lines are equal
EVALUATION = EvalConfig(tasks=200)


@dataclasses.dataclass(frozen=True)
class Played:
    """What a run has played, by content: equal items of two names or families are one. trained:
    also what was demonstrated and probed. groups: that were begun, in all lives."""

    trained: frozenset[str]
    evaluated: frozenset[str]
    groups: int
    lives: int

    @property
    def leaks(self) -> int:
        """The number of tasks that training and evaluation share."""
        return len(self.trained & self.evaluated)


def made_run(folder: Path, seed: int) -> Played:
    """Plays a run of several lives. folder: empty; its world is written there."""
    draw = random.Random(seed)
    world = _write_world(folder, draw)
    names = draw.sample(("shared", "also", "apart", "seeds"), k=draw.randint(2, 4))
    split = draw.randint(1, len(names))
    domains = tuple(
        Domain(world, tuple(its), ratio=draw.randint(1, 5))
        for its in (names[:split], names[split:])
        if its
    )
    repeats, alpha, size = draw.randint(1, 2), draw.choice((0.0, 1.0, 2.5)), draw.randint(1, 6)
    quotas = Quotas.of_ratios([domain.ratio for domain in domains], repeats)
    cursor = Cursor(next_groups=tuple(0 for _ in domains), round=quotas.round)
    trained, evaluated, begun, lives = set(), set(), set(), draw.randint(2, 4)
    for _ in range(lives):
        families = open_families(domains, str(folder))
        schedule = Schedule(families, domains, (), domains, seed)
        tasks = [key.task for key in schedule.evaluation("final", EVALUATION)]
        tasks += [key.task for key in Plan(families).episodes()]
        evaluated |= {_content(families, task) for task in tasks}
        gate = StalenessGate(alpha, size, cursor.step, quotas=quotas)
        cursor, groups = _live(cursor, gate, draw)
        begun |= groups
        tasks = [schedule.train_task(group // repeats) for group in groups]
        if cursor.step == 0:
            tasks += [each for domain in domains for each in schedule.demonstrations(domain, 9)]
            tasks += schedule.probes(8)
        trained |= {_content(families, task) for task in tasks}
    return Played(frozenset(trained), frozenset(evaluated), len(begun), lives)


def _write_world(folder: Path, draw: random.Random) -> str:
    """Returns its name, under which no other folder has a module in this process."""
    module = f"made_{folder.name}"
    (folder / f"{module}.py").write_text(WORLD)
    for file, pool in FILES.items():
        texts = (f"{pool} {draw.randrange(TEXTS)}" for _ in range(LINES))
        lines = (json.dumps({"id": f"{file}{n}", "text": each}) for n, each in enumerate(texts))
        (folder / f"{file}.jsonl").write_text("\n".join(lines))
    return f"{module}:Made"


def _content(families: Families, task: Task) -> str:
    item = families[task.family].item(task)
    return str(item.row["text"] if item.row else item.seed)


def _live(cursor: Cursor, gate: StalenessGate, draw: random.Random) -> tuple[Cursor, set[int]]:
    """Trains from a checkpoint until the process dies; returns the newest checkpoint, and the
    groups that were begun. A tenth of them fails."""
    stream, saved, begun = GroupStream(cursor), cursor, set()
    for _ in range(draw.randint(1, 20)):
        while (domain := gate.next_domain()) is not None:
            begun.add(group := stream.take(domain))
            gate.admit(group)
            if draw.random() < 0.1:
                gate.drop(group, Drop.FAILED)
        for domain in gate.quotas.domains:
            own = (group for group in gate.outstanding() if gate.quotas.domain(group) == domain)
            for group in draw.sample(list(own), k=gate.per_batch(domain)):
                gate.complete(group)
                gate.train(group)
        left = (*gate.outstanding(), *stream.left_open)
        cursor = dataclasses.replace(
            cursor, step=cursor.step + 1, groups=left, next_groups=stream.next_groups
        )
        gate.publish(cursor.step)
        saved = draw.choice((saved, cursor))
    return saved, begun


def interrupted_evaluation(folder: Path, seed: int) -> Counter[tuple[str, str, str | int, int]]:
    """Plays an evaluation of several lives; returns how often each item and sample is on record.
    folder: empty."""
    draw = random.Random(seed)
    families = open_families((Domain(_write_world(folder, draw)),), str(folder))
    plan, out = Plan(families, samples=draw.randint(1, 4)), folder / "out"
    counted = Counter({(*plan.item(key.task), key.member): 0 for key in plan.episodes()})
    while keys := plan.left(finished(out)):
        with EpisodeWriter(out) as writer:
            for key in keys[: draw.randint(1, len(keys))]:
                writer.write(record_of(families, _played(key), 1))
    counted.update(_written(out))
    return counted


def _played(key: EpisodeKey) -> Episode:
    return Episode(key, Status.FINISHED, 0.0, 1, 0, seconds=1.0, env_seconds=0.0)


def _written(out: Path) -> Iterator[tuple[str, str, str | int, int]]:
    for line in (out / "episodes.jsonl").read_text().splitlines():
        told = json.loads(line)
        yield told["world"], told["family"], told["item"], told["sample"]
