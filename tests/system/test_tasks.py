"""Positions give tasks: always the same ones, and never a training task in an evaluation."""

from ale_jax.data.replay import Group
from ale_jax.envs.shell.families import TRAIN_FAMILIES
from ale_jax.envs.splits import SPLITS
from ale_jax.system.tasks import Cursor, demonstration_tasks, evaluation, probe_tasks, train_task
from tests.data.make_trajectories import make_trajectory, make_turn


def test_a_position_is_always_the_same_task():
    assert train_task(5, TRAIN_FAMILIES, seed=0) == train_task(5, TRAIN_FAMILIES, seed=0)
    assert train_task(5, TRAIN_FAMILIES, 0).seed != train_task(5, TRAIN_FAMILIES, 1).seed


def test_families_take_turns():
    count = 3 * len(TRAIN_FAMILIES)
    families = [train_task(g, TRAIN_FAMILIES, 0).family for g in range(count)]
    assert families == list(TRAIN_FAMILIES) * 3


def test_a_bounded_number_of_tasks_comes_back_in_the_same_order():
    tasks = [train_task(g, ("trail", "count"), 0, distinct=3) for g in range(12)]
    assert tasks[:6] == tasks[6:]
    assert tasks[:6] == [train_task(g, ("trail", "count"), 0) for g in range(6)]
    assert len(set(tasks)) == 6
    assert [t.family for t in tasks[:6]] == ["trail", "count"] * 3


def test_training_and_evaluation_never_meet():
    training = {train_task(g, TRAIN_FAMILIES, 0).seed for g in range(500)}
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


def test_episodes_that_a_second_step_uses_are_counted_once():
    turns = [make_turn([1, 2], [3, 4, 5])]
    used = Group(0, (make_trajectory(0, 0, turns), make_trajectory(0, 1, turns)), is_reused=True)
    new = Group(1, tuple(make_trajectory(1, n, turns, start_version=1) for n in (0, 1)))
    after = Cursor(step=2, episodes=2, policy_tokens=6).after([used, new])
    assert (after.episodes, after.policy_tokens) == (4, 12)
    assert (after.step, after.max_staleness) == (3, 2)
