"""What a step leaves in the run's records."""

from types import SimpleNamespace

import pytest

from ale_jax.data.replay import Group
from ale_jax.monitor.events import read_events
from ale_jax.monitor.metrics import read_metrics
from ale_jax.system.crew import CrewCounts
from ale_jax.system.improve import Cursor, StepReport
from ale_jax.system.watch import Watch
from tests.data.make_trajectories import make_trajectory, make_turn

GROUP = Group(0, (make_trajectory(0, 0, [make_turn([1], [2, 3])]),))


@pytest.mark.parametrize(
    ("gap", "event"),
    [({}, False), ({"learner_gap": 9e-4}, False), ({"learner_gap": 2e-3}, True),
     ({"learner_gap": float("nan")}, True)],
)  # fmt: skip
def test_a_learner_far_from_its_engine_is_an_event(gap, event, tmp_path):
    made = SimpleNamespace(samples=[])  # nothing to learn: no sums
    report = StepReport(Cursor(step=1), {}, [GROUP], made, {}, gap, 0.1, 0.2)
    crew = SimpleNamespace(counts=CrewCounts(1, 0, 0, 0, 0))
    with Watch(tmp_path, None) as watch:
        watch.progress.phase("ipa", 1)
        watch.rl_step(report, crew, sampled_tokens=10, gap_limit=1e-3)
    (line,) = read_metrics(tmp_path / "metrics.jsonl").records
    assert gap.keys() == line.keys() & {"learner_gap"}
    kinds = [e.kind for e in read_events(tmp_path / "events.jsonl").records]
    assert kinds == ["learner_gap"] * event
