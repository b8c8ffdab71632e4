"""times.jsonl: what was written comes back, on a clock that begins with the run's process."""

import pytest

from ale_jax.monitor.times import (
    NO_GROUP,
    TIMES_FILE,
    AttemptTimes,
    StepTimes,
    Times,
    TimesWriter,
    read_times,
)
from ale_jax.status import Status

ATTEMPT = AttemptTimes(102.0, 103.5, Status.TURN_LIMIT, 7, 3, 41)
EVALUATED = AttemptTimes(103.0, 104.0, Status.SANDBOX_LOST, NO_GROUP, 0, 0)
STEP = StepTimes(1, 0.5, 104.0, 105.25, 0.0, (0, 1), 2, lent=0.75)


def _write(folder, *records):
    with TimesWriter(folder, clock=lambda: 100.0) as writer:
        for each in records:
            (writer.step if isinstance(each, StepTimes) else writer.attempt)(each)


def test_times_come_back_since_the_process_began(tmp_path):
    _write(tmp_path, STEP)  # of a process before
    _write(tmp_path, ATTEMPT, STEP, EVALUATED)
    assert read_times(tmp_path / TIMES_FILE) == Times(
        (
            AttemptTimes(2.0, 3.5, Status.TURN_LIMIT, 7, 3, 41),
            AttemptTimes(3.0, 4.0, Status.SANDBOX_LOST, NO_GROUP, 0, 0),
        ),
        (StepTimes(1, 0.5, 4.0, 5.25, 0.0, (0, 1), 2, lent=0.75),),
    )


def test_runs_from_before_there_was_lending_can_be_read(tmp_path):
    _write(tmp_path, STEP)
    path = tmp_path / TIMES_FILE
    path.write_text(path.read_text().replace(', "lent": 0.75', ""))
    (step,) = read_times(path).steps
    assert step.lent == 0.0 and step.stale == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"ended": 3.5', '"ended": 1.5'),
        ('"begun": 2.0', '"begun": -2.0'),
        ('"ended": 3.5', '"ended": 1e300'),
        ('"turn_limit"', '"tired"'),
        ('"tokens": 41', '"tokens": "many"'),
        ('"published": 5.25', '"published": 3.25'),
        ('"lent": 0.75', '"lent": -0.75'),
    ],
)
def test_a_damaged_line_is_named(old, new, tmp_path):
    _write(tmp_path, ATTEMPT, STEP)
    path = tmp_path / TIMES_FILE
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ValueError, match=r"times.jsonl, line [12]: damaged"):
        read_times(path)
