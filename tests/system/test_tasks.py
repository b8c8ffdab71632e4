"""Positions give tasks: always the same ones, and never a training task in an evaluation."""

from ale_jax.system.tasks import demonstration_tasks, evaluation, probe_tasks, train_group
from envs.shell.families import TRAIN_FAMILIES
from envs.splits import SPLITS


def test_a_group_is_one_task_attempted_by_each_member():
    slots = train_group(5, 4, TRAIN_FAMILIES, seed=0)
    assert [s.member for s in slots] == [0, 1, 2, 3]
    assert len({s.task for s in slots}) == 1
    assert slots == train_group(5, 4, TRAIN_FAMILIES, seed=0)
    assert slots[0].task.seed != train_group(5, 4, TRAIN_FAMILIES, seed=1)[0].task.seed


def test_families_take_turns():
    count = 3 * len(TRAIN_FAMILIES)
    families = [train_group(g, 1, TRAIN_FAMILIES, 0)[0].task.family for g in range(count)]
    assert families == list(TRAIN_FAMILIES) * 3


def test_training_and_evaluation_never_meet():
    training = {train_group(g, 1, TRAIN_FAMILIES, 0)[0].task.seed for g in range(500)}
    training |= {t.seed for t in demonstration_tasks(200, TRAIN_FAMILIES, 0)}
    probes = {t.seed for t in probe_tasks(300, TRAIN_FAMILIES)}
    evaluated = {s.task.seed for s in evaluation("final", 300, TRAIN_FAMILIES)}
    assert all(seed in SPLITS["train"] for seed in training)
    assert all(seed in SPLITS["eval"] for seed in probes | evaluated)
    assert not probes & evaluated


def test_every_evaluation_asks_the_same_tasks():
    first = [s.task for s in evaluation("warm_start", 40, TRAIN_FAMILIES)]
    assert first == [s.task for s in evaluation("final", 40, TRAIN_FAMILIES)]
    assert len(set(first)) == 40
