"""Positions give tasks: always the same ones, and never a training task in an evaluation."""

import collections
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ale_jax.config.worlds import Domain, EvalConfig, WarmStartConfig
from ale_jax.envs.shell.families import TRAIN_FAMILIES
from ale_jax.worlds.families import open_families
from ale_jax.worlds.items import SEEDS
from ale_jax.worlds.schedule import Schedule

SHELL = (Domain("shell", TRAIN_FAMILIES),)
TWO = (Domain("shell", ("trail", "count")),)


def schedule(train=SHELL, seed=0, distinct=0, held_out=(), folder=""):
    families = open_families((*train, *held_out), folder)
    return Schedule(families, train, held_out, train, seed, distinct)


def test_a_position_is_always_the_same_task():
    assert schedule().train_task(5) == schedule().train_task(5)
    assert schedule().train_task(5).item != schedule(seed=1).train_task(5).item


def test_families_take_turns():
    count = 3 * len(TRAIN_FAMILIES)
    families = [schedule().train_task(g).family for g in range(count)]
    assert families == list(TRAIN_FAMILIES) * 3


def test_a_bounded_number_of_tasks_comes_back_in_the_same_order():
    tasks = [schedule(TWO, distinct=3).train_task(g) for g in range(12)]
    assert tasks[:6] == tasks[6:]
    assert tasks[:6] == [schedule(TWO).train_task(g) for g in range(6)]
    assert len(set(tasks)) == 6
    assert [t.family for t in tasks[:6]] == ["trail", "count"] * 3


def test_training_and_evaluation_never_meet():
    run = schedule()
    training = {run.train_task(g).item for g in range(500)}
    training |= {t.item for t in run.demonstrations(SHELL[0], 200)}
    probes = {t.item for t in run.probes(300)}
    evaluated = {key.task.item for key in run.evaluation("final", EvalConfig(tasks=300))}
    assert all(seed in SEEDS["train"] for seed in training)
    assert all(seed in SEEDS["eval"] for seed in probes | evaluated)
    assert not probes & evaluated


def test_every_evaluation_asks_the_same_tasks():
    asked = EvalConfig(tasks=40)
    first = [key.task for key in schedule().evaluation("warm_start", asked)]
    assert first == [key.task for key in schedule().evaluation("final", asked)]
    assert len(set(first)) == 40


@given(st.lists(st.integers(1, 7), min_size=1, max_size=5), st.integers(0, 10**6))
def test_in_each_round_every_domain_has_its_ratio(ratios, first):
    names = iter(TRAIN_FAMILIES)
    domains = tuple(Domain("shell", (next(names),), ratio=ratio) for ratio in ratios)
    run, round_ = schedule(domains), sum(ratios)
    drawn = [run.train_task(first + i).family for i in range(round_)]
    counted = collections.Counter(drawn)
    assert [counted[domain.families[0]] for domain in domains] == ratios


WORLD = """
from ale_jax.worlds.api import Step, World
from ale_jax.worlds.rows import Rows

class Sums(World):
    families = {name: Rows(f"{name}.jsonl", eval_share=0.2) for name in ("easy", "hard")}

    def reset(self, item, sandbox):
        self._answer = item["answer"]
        return item["question"]

    def step(self, reply):
        return Step(reward=float(reply.strip() == self._answer), done=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a world of two families, of 40 items each."""
    folder = tmp_path_factory.mktemp("worlds")
    (folder / "scheduled_sums.py").write_text(WORLD)
    for name, step in (("easy", 1), ("hard", 100)):
        rows = ({"question": f"{n * step}+1?", "answer": str(n * step + 1)} for n in range(40))
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(folder)


SUMS = (Domain("scheduled_sums:Sums"),)


@given(seed=st.integers(0, 2**31), epochs=st.integers(1, 3))
def test_each_epoch_is_every_training_item_once_and_none_of_the_evaluation(folder, seed, epochs):
    run = schedule(SUMS, seed, folder=folder)
    items = run.families["easy"].items
    count = items.count("train")
    assert count == run.families["hard"].items.count("train") or count > 0
    evaluated = {key.task for key in run.evaluation("final", EvalConfig(tasks=1000))}
    assert len(evaluated) == sum(run.families[n].items.count("eval") for n in ("easy", "hard"))
    per_family = collections.defaultdict(list)
    for number in range(2 * count * epochs):
        task = run.train_task(number)
        assert (task.family, task.item) not in {(t.family, t.item) for t in evaluated}
        per_family[task.family].append(task.item)
    for epoch in range(epochs):
        drawn = per_family["easy"][epoch * count : (epoch + 1) * count]
        assert len(set(drawn)) == count


def test_demonstrated_items_are_not_probed(folder):
    run = schedule(SUMS, folder=folder)
    shown = {(t.family, t.item) for t in run.demonstrations(SUMS[0], 20)}
    probed = {(t.family, t.item) for t in run.probes(10)}
    assert len(shown) == 40 and len(probed) == 10 and not shown & probed
    run.check(config_with(20, 10))
    with pytest.raises(ValueError, match=r"family easy has .. items in its split 'train', and 60"):
        run.check(config_with(50, 20))


def config_with(shown, probed):
    class Config:
        warm_start = WarmStartConfig(transcripts_per_family=shown, probe_tasks=probed, max_steps=1)

    return Config
