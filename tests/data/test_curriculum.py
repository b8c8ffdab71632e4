"""What is remembered of each start, and for how long."""

import json

from ale_jax.data.curriculum import Curriculum
from ale_jax.records import Task

TASK, OTHER = Task("fake", 0, "train"), Task("fake", 1, "train")


def test_outcomes_are_counted_by_task_and_start():
    curriculum = Curriculum(window=10, memory=10)
    curriculum.record(TASK, 2, 0, [True, False, True])
    curriculum.record(TASK, 1, 0, [False])
    curriculum.record(OTHER, 2, 0, [True])
    assert curriculum.counts(TASK, 2, 0) == (2, 3)
    assert curriculum.counts(TASK, 1, 0) == (0, 1)
    assert curriculum.counts(OTHER, 2, 0) == (1, 1)
    assert curriculum.counts(OTHER, 0, 0) == (0, 0)


def test_the_latest_of_a_window_count_and_none_that_are_old():
    curriculum = Curriculum(window=3, memory=5)
    curriculum.record(TASK, 0, 0, [True, True])
    curriculum.record(TASK, 0, 4, [False, False])
    assert curriculum.counts(TASK, 0, 4) == (1, 3)  # the first was pushed out
    assert curriculum.counts(TASK, 0, 5) == (0, 2)  # the second is five versions old
    assert curriculum.counts(TASK, 0, 9) == (0, 0)


def test_another_expert_leaves_the_starts_that_it_shares():
    curriculum = Curriculum(window=3, memory=5)
    for start in range(4):
        curriculum.record(TASK, start, 0, [True])
    curriculum.forget_after(TASK, 1)
    assert [curriculum.counts(TASK, k, 0)[1] for k in range(4)] == [1, 1, 0, 0]


def test_it_survives_a_checkpoint():
    curriculum = Curriculum(window=2, memory=5)
    curriculum.record(TASK, 3, 1, [True, False])
    curriculum.move(TASK, 3)
    curriculum.move(OTHER, 1)
    again = Curriculum(window=2, memory=5)
    again.load(json.loads(json.dumps(curriculum.to_json())))
    assert again.to_json() == curriculum.to_json()
    assert (again.start(TASK), again.start(OTHER)) == (3, 1)
    again.record(TASK, 3, 2, [False])
    assert again.counts(TASK, 3, 2) == (0, 2)  # the window is one, too
