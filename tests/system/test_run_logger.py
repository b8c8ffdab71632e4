"""What a step leaves in the run's records."""

from types import SimpleNamespace

import pytest

from ale_jax.data.replay import Group
from ale_jax.monitor.events import read_events
from ale_jax.monitor.metrics import read_metrics
from ale_jax.system.actors.rollout_workers import WorkerCounts
from ale_jax.system.run_logger import RunLogger
from ale_jax.system.step_metrics import StepReport
from ale_jax.system.tasks import Cursor
from tests.data.make_trajectories import make_trajectory, make_turn

GROUP = Group(0, (make_trajectory(0, 0, [make_turn([1], [2, 3])]),))


@pytest.mark.parametrize(
    ("gap", "event"),
    [({}, False), ({"train_rollout_logp_diff": 9e-4}, False),
     ({"train_rollout_logp_diff": 2e-3}, True),
     ({"train_rollout_logp_diff": float("nan")}, True)],
)  # fmt: skip
def test_a_learner_far_from_its_engine_is_an_event(gap, event, tmp_path):
    made = SimpleNamespace(samples=[])  # nothing to learn: no sums
    report = StepReport(Cursor(step=1), [GROUP], made, {}, gap, 0.1, 0.2)
    workers = SimpleNamespace(counts=WorkerCounts(1, 0, 0, 0, 0))
    with RunLogger(tmp_path, None) as logger:
        logger.progress.phase("ipa", 1)
        logger.rl_step(report, workers, sampled_tokens=10, logp_diff_limit=1e-3)
    (line,) = read_metrics(tmp_path / "metrics.jsonl").records
    assert gap.keys() == line.keys() & {"train_rollout_logp_diff"}
    kinds = [e.kind for e in read_events(tmp_path / "events.jsonl").records]
    assert kinds == ["train_rollout_logp_diff"] * event


def test_what_slows_a_run_down_is_shown_and_the_rest_only_recorded(tmp_path, capsys):
    with RunLogger(tmp_path, None) as logger:
        logger.record("actor_started", "actor 0 plays in process 7")
        logger.record("episodes_paused", "4 of the last 8 attempts failed")
    said = capsys.readouterr().out
    assert "episodes paused: 4 of the last 8 attempts failed" in said and "process 7" not in said
    kinds = [e.kind for e in read_events(tmp_path / "events.jsonl").records]
    assert kinds == ["actor_started", "episodes_paused"]
