"""schedule.jsonl: what was written comes back, and is cut where a run is resumed."""

import dataclasses

import pytest

from ale_jax.monitor.schedule import (
    SCHEDULE_FILE,
    ScheduledGroup,
    ScheduledStep,
    ScheduleWriter,
    read_schedule,
)

GROUP = ScheduledGroup(
    index=7, order=9, version=3, starts=(3, 4), ages=(2, 1), versions=(((3, 10), (4, 2)), ((4, 5),))
)
STEP = ScheduledStep(step=6, groups=(GROUP,), dropped=((4, "failed"), (5, "stale")))


def write(workdir, *numbers, resume_step=0):
    with ScheduleWriter(workdir, resume_step) as writer:
        for step in numbers:
            writer.write(dataclasses.replace(STEP, step=step))


def test_steps_come_back_and_those_after_the_restored_one_are_cut(tmp_path):
    write(tmp_path, 1, 2, 3)
    write(tmp_path, 3, resume_step=2)
    found = read_schedule(tmp_path / SCHEDULE_FILE).records
    assert found == tuple(dataclasses.replace(STEP, step=step) for step in (1, 2, 3))


def test_a_damaged_line_is_named(tmp_path):
    write(tmp_path, 1, 2)
    path = tmp_path / SCHEDULE_FILE
    path.write_text(path.read_text().replace('"ages": [2, 1]', '"ages": [2]', 1))
    with pytest.raises(ValueError, match=r"schedule.jsonl, line 1: damaged .*different lengths"):
        write(tmp_path, resume_step=2)
