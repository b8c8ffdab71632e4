"""What a step leaves in the run's records."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from ale_jax.data.packing import text_turn
from ale_jax.data.replay import DroppedGroup, Group
from ale_jax.data.staleness import Admission, Drop
from ale_jax.learn.critics import CRITIC_SKIPPED
from ale_jax.monitor.evaluations import read_evaluations, write_evaluations
from ale_jax.monitor.events import read_events
from ale_jax.monitor.metrics import read_metrics
from ale_jax.monitor.schedule import ScheduledGroup, ScheduledStep, read_schedule
from ale_jax.monitor.times import TIMES_FILE, read_times
from ale_jax.records import CallCounts, SideBranch, Task
from ale_jax.status import Status
from ale_jax.system.rollouts.workers import WorkerCounts
from ale_jax.system.run_logger import RunLogger, summarize
from ale_jax.system.step_metrics import StepReport
from ale_jax.system.tasks import Cursor
from tests.data.make_trajectories import make_trajectory, make_turn
from tests.monitor.fake_run import EVALUATIONS, Clock
from tests.system.configs import smoke_config

STATUSES = (Status.SANDBOX_LOST, Status.SANDBOX_START_FAILED, Status.ACTOR_LOST)
GROUP = Group(0, (make_trajectory(0, 0, [make_turn([1], [2, 3])]),), Admission(0, 0))


NOTHING_LEARNED = SimpleNamespace(samples=[], read_speed=dict)  # so there are no sums


IDLE = SimpleNamespace(counts=WorkerCounts(1, 0, 0))


def _log(workdir, report):
    with RunLogger(workdir, None) as logger:
        logger.progress.phase("ipa", 1)
        logger.rl_step(report, IDLE, sampled_tokens=10, logp_diff_limit=1e-3)


@pytest.mark.parametrize(
    ("gap", "event"),
    [
        ({}, False),
        ({"train_rollout_logp_diff": 9e-4}, False),
        ({"train_rollout_logp_diff": 2e-3}, True),
        ({"train_rollout_logp_diff": float("nan")}, True),
    ],
)
def test_a_learner_far_from_its_engine_is_an_event(gap, event, tmp_path):
    _log(tmp_path, StepReport(Cursor(step=1), [GROUP], NOTHING_LEARNED, [], gap, 0.1, 0.2))
    (line,) = read_metrics(tmp_path / "metrics.jsonl").records
    assert gap.keys() == line.keys() & {"train_rollout_logp_diff"}
    kinds = [e.kind for e in read_events(tmp_path / "events.jsonl").records]
    assert kinds == ["train_rollout_logp_diff"] * event


def test_updates_that_were_skipped_are_counted_in_an_event_for_each_who_skipped_them(tmp_path):
    extra = {"skipped_updates": 1.0, CRITIC_SKIPPED: 3.0}
    _log(tmp_path, StepReport(Cursor(step=4), [GROUP], NOTHING_LEARNED, [], extra, 0.1, 0.2))
    events = read_events(tmp_path / "events.jsonl").records
    assert [(e.kind, e.fields["step"]) for e in events] == [("update_skipped", 4)] * 2
    counts = [e.detail.partition(" updates: ")[0] for e in events]
    assert counts == ["1 of the policy's", "3 of the critics'"]


def test_an_agent_that_rewrites_its_history_is_warned_of_once(tmp_path, capsys):
    made = GROUP.members[0]
    for number, (conversations, warned) in enumerate([(1, False), (3, True)]):
        side = (SideBranch(made.turns),) * (conversations - 1)
        turns = made.turns * (3 if conversations == 1 else 1)
        group = Group(
            0, (dataclasses.replace(made, turns=turns, side_branches=side),), GROUP.admission
        )
        (folder := tmp_path / str(number)).mkdir()
        with RunLogger(folder, None) as logger:
            logger.progress.phase("ipa", 2)
            for step in (1, 2):
                report = StepReport(Cursor(step=step), [group], NOTHING_LEARNED, [], {}, 0.1, 0.2)
                logger.rl_step(report, IDLE, sampled_tokens=10, logp_diff_limit=1e-3)
        events = read_events(folder / "events.jsonl").records
        assert [event.kind for event in events] == ["history_rewritten"] * warned
        assert ("100% of the replies after" in capsys.readouterr().out) == warned


def test_what_the_policy_is_not_shown_is_named_once(tmp_path):
    made = GROUP.members[0]
    sent = [("tool web_search",), ("image", "tool web_search"), ("image",)]
    with RunLogger(tmp_path, None) as logger:
        logger.progress.phase("ipa", 3)
        for step, unseen in enumerate(sent):
            members = (dataclasses.replace(made, calls=CallCounts(unseen=unseen)),)
            report = StepReport(
                Cursor(step=step),
                [Group(0, members, GROUP.admission)],
                *(NOTHING_LEARNED, [], {}, 0.1, 0.2),
            )
            logger.rl_step(report, IDLE, sampled_tokens=10, logp_diff_limit=1e-3)
    events = read_events(tmp_path / "events.jsonl").records
    named = [
        (e.detail.partition(":")[0], e.fields["step"]) for e in events if e.kind == "not_shown"
    ]
    assert named == [("tool web_search", 0), ("image", 1)]


def test_what_slows_a_run_down_is_shown_and_the_rest_only_recorded(tmp_path, capsys):
    with RunLogger(tmp_path, None) as logger:
        logger.record("actor_started", "actor 0 plays in process 7")
        logger.record("episodes_paused", "4 of the last 8 attempts failed")
    said = capsys.readouterr().out
    assert "episodes paused: 4 of the last 8 attempts failed" in said and "process 7" not in said
    kinds = [e.kind for e in read_events(tmp_path / "events.jsonl").records]
    assert kinds == ["actor_started", "episodes_paused"]


def test_a_step_leaves_what_a_replay_needs(tmp_path):
    """Of two members, one went on after a publish, and the other one after an expert's turn."""
    went_on = make_trajectory(
        5, 0, [make_turn([1], [2, 3], version=6), make_turn([4], [5], version=7)], start_version=6
    )
    two_weights = dataclasses.replace(make_turn([8], [6, 7, 8]), version=np.array([7, 8, 8]))
    turns = [text_turn([1], [2]), two_weights]
    resampled = dataclasses.replace(
        make_trajectory(5, 1, turns, start_version=7), num_prefix_turns=1
    )
    group = Group(5, (went_on, resampled), Admission(order=11, version=6))
    dropped = (DroppedGroup(3, Drop.STALE, ()), DroppedGroup(4, Drop.FAILED, ()))
    _log(tmp_path, StepReport(Cursor(step=9), [group], NOTHING_LEARNED, [], {}, 0.1, 0.2, dropped))
    assert read_schedule(tmp_path / "schedule.jsonl").records == (
        ScheduledStep(
            step=9,
            groups=(
                ScheduledGroup(
                    index=5,
                    order=11,
                    version=6,
                    starts=(6, 7),
                    ages=(2, 1),
                    versions=(((6, 2), (7, 1)), ((7, 1), (8, 2))),
                ),
            ),
            dropped=((3, "stale"), (4, "failed")),
        ),
    )


def test_a_dropped_group_is_named_with_its_task_and_how_its_episodes_ended(tmp_path):
    def lost(member, status):
        return make_trajectory(3, member, status=status, reward=None)

    statuses = (Status.SANDBOX_LOST, Status.ACTOR_LOST, Status.SANDBOX_LOST)
    members = tuple(lost(member, status) for member, status in enumerate(statuses))
    with RunLogger(tmp_path, None) as logger:
        logger.note_dropped(DroppedGroup(3, Drop.FAILED, members), Task("count", 77, "train"))
        logger.note_dropped(DroppedGroup(4, Drop.STALE, ()), Task("trail", 78, "train"))
        logger.note_dropped(DroppedGroup(5, Drop.EQUAL, members), Task("trail", 79, "train"))
    failed, stale = read_events(tmp_path / "events.jsonl").records
    assert failed.kind == stale.kind == "group_dropped"
    assert failed.fields == {
        "group": 3,
        "reason": "failed",
        "family": "count",
        "item": 77,
        "statuses": "2 sandbox_lost, 1 actor_lost",
    }
    assert (stale.fields["reason"], stale.fields["statuses"]) == ("stale", "none came back")


def test_a_resumed_run_takes_back_what_it_makes_again(tmp_path):
    """Evaluations of lost steps, and that of its end; and that groups were dropped in them."""
    steps = {"warm_start": 0, "step_20": 20, "step_30": 30, "final": 30}
    made = [dataclasses.replace(EVALUATIONS[0], name=n, step=s) for n, s in steps.items()]
    task = Task("count", 77, "train")
    with RunLogger(tmp_path, 30) as logger:
        for group in (3, 7, 12):
            logger.note_dropped(DroppedGroup(group, Drop.STALE, ()), task)
    write_evaluations(tmp_path, made)
    for step in (5, 20, 21):
        (tmp_path / "episodes" / f"train_{step}").mkdir(parents=True)
    with RunLogger(tmp_path, 20) as logger:
        logger.note_resumed(Cursor(step=20, groups=(7, 8), next_groups=(11,)), "rl.steps 30 -> 40")
    names = [e.name for e in read_evaluations(tmp_path / "evaluations.json")]
    assert names == ["warm_start", "step_20"]
    kept = sorted(folder.name for folder in (tmp_path / "episodes").iterdir())
    assert kept == ["train_20", "train_5"]
    events = read_events(tmp_path / "events.jsonl").records
    assert [e.fields for e in events if e.kind == "resumed"] == [{"step": 20}]
    changed = [e.detail for e in events if e.kind == "config_changed"]
    assert changed == ["rl.steps 30 -> 40"]
    assert [e.fields["group"] for e in events if e.kind == "group_reopened"] == [7, 12]


def test_what_was_lost_is_counted_from_the_start_of_the_run(tmp_path):
    for checkpoint in (None, 20):  # and so over both of its processes
        with RunLogger(tmp_path, checkpoint) as logger:
            for status in STATUSES:
                logger.record("attempt_failed", "it is gone", status=status.value, retried=True)
            logger.record("actor_lost", "actor 0", actor=0)
    write_evaluations(tmp_path, EVALUATIONS)
    summary = summarize(smoke_config(), tmp_path, Cursor(step=30), seconds=60.0)
    assert (summary.sandbox_failures, summary.actor_restarts) == (4, 2)


def test_the_speed_of_the_first_step_is_that_since_rollouts_began(tmp_path):
    clock = Clock()
    with RunLogger(tmp_path, None, clock) as logger:
        clock.now += 3600.0  # of warm start
        logger.rollouts_begin()
        for step, tokens in ((1, 100), (2, 400)):
            clock.now += 10.0
            learned = SimpleNamespace(samples=[], read_speed=lambda: {"mfu": 0.25})
            report = StepReport(Cursor(step=step), [GROUP], learned, [], {}, 0.1, 0.2)
            logger.rl_step(report, IDLE, tokens, logp_diff_limit=1e-3)
    lines = read_metrics(tmp_path / "metrics.jsonl").records
    assert [line["tokens_per_second"] for line in lines] == [10.0, 30.0]
    assert [line["mfu"] for line in lines] == [0.25, 0.25]  # the learner's own figures


def test_a_run_that_goes_on_with_other_items_says_so(tmp_path):
    for digests in ({"easy": "1", "hard": "2"}, {"easy": "1", "hard": "2"}, {"easy": "3"}):
        with RunLogger(tmp_path, None) as logger:
            logger.note_worlds(digests)
    (event,) = read_events(tmp_path / "events.jsonl").records
    assert event.kind == "worlds_changed" and event.detail.startswith("easy: code or items")


def test_what_was_lent_is_a_metric_of_runs_that_lend_and_is_timed(tmp_path):
    for name, lent in (("lends", 0.15), ("keeps", None)):
        folder = tmp_path / name
        report = StepReport(Cursor(step=1), [GROUP], NOTHING_LEARNED, [], {}, 0.0, 0.0)
        _log(folder, dataclasses.replace(report, lent_seconds=lent))
        (line,) = read_metrics(folder / "metrics.jsonl").records
        (step,) = read_times(folder / TIMES_FILE).steps
        assert (line.get("time/lent_s"), step.lent) == (lent, lent or 0.0)
