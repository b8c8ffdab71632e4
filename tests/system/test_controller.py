"""The controller: what a whole run leaves, also when it is killed or stopped on the way."""

import json
import signal
from collections import Counter

import jax
import numpy as np
import pytest

from ale_jax.learn.manifest import state_folder
from ale_jax.monitor.bubbles import processes_of, sum_bubbles
from ale_jax.monitor.evaluations import read_evaluations, read_summary
from ale_jax.monitor.events import read_events
from ale_jax.monitor.report import render
from ale_jax.monitor.report_sections import time_splits
from ale_jax.monitor.run_files import read_run
from ale_jax.monitor.timeline import TIMELINE_FILE
from ale_jax.monitor.times import read_times
from ale_jax.status import STATUS_RULES
from tests.monitor.traces import assert_nested, trace_events
from tests.system.untimed import rl_lines
from tests.system.whole_runs import (
    LEARNING,
    begin,
    interrupt,
    last_state,
    run,
    run_here,
)

pytestmark = pytest.mark.heavy


def test_a_run_leaves_its_records(unbroken):
    workdir, output = unbroken
    summary = read_summary(workdir / "summary.json")
    assert summary.episodes == 4 * 3 * 2  # steps, groups, members
    assert summary.max_staleness == 0
    assert summary.policy_tokens > summary.episodes
    assert {e.name for e in read_evaluations(workdir / "evaluations.json")} == {
        "warm_start",
        "final",
    }
    lines = rl_lines(workdir)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert all(line["grad_norm"] > 0 for line in lines), "nothing was learned"
    assert 0 < lines[0]["train_rollout_logp_diff"] <= 1e-5
    assert all(
        "train_rollout_logp_diff" not in line for line in lines[1:]
    )  # asked every five steps
    assert all(("router_load_max" in line) == ("loss" in line) for line in lines)
    assert "<html" in (workdir / "report.html").read_text()
    assert json.loads((workdir / "config.json").read_text())["rl"]["alpha"] == 0.0
    assert "report.html" in output


def test_a_run_leaves_when_its_attempts_and_steps_ended(unbroken):
    """The step that ends first had its groups' episodes behind it, and no age."""
    times = read_times(unbroken[0] / "times.jsonl")
    assert [step.step for step in times.steps] == [1, 2, 3, 4]
    assert [step.ages for step in times.steps] == [(0, 0, 0)] * 4
    told = [each for each in times.attempts if not STATUS_RULES[each.status].retry]
    trained = [each for each in told if 0 <= each.group < 4 * 3]
    assert sorted(each.group for each in trained) == sorted([*range(4 * 3)] * 2)
    assert len(told) > len(trained), "evaluations are told, too"
    first = [each for each in trained if each.group < 3]
    assert max(each.ended for each in first) <= times.steps[0].taken + 0.1
    assert all(each.tokens > 0 and each.turns > 0 and each.seconds > 0 for each in trained)


def test_the_report_of_a_real_run_says_where_the_time_went(unbroken):
    read = read_run(unbroken[0])
    controller, episodes = time_splits(read)
    seconds = {bar.label: bar.value for split in (controller, episodes) for bar, _ in split.parts}
    assert seconds.keys() == {"learner", "waiting", "generation", "environment", "verifier"}
    assert min(seconds.values()) > 0
    # The controller does one thing at a time; four of the run's episodes are played at once.
    assert seconds["learner"] + seconds["waiting"] < read.metrics[-1]["seconds"]
    assert sum(bar.value for bar, _ in episodes.parts) < 4 * read.metrics[-1]["seconds"]
    page = render(read)
    assert all(f"</i>{name}<span" in page for name in seconds)


def test_the_timeline_of_a_real_run_agrees_with_its_metrics(unbroken):
    path, run_files = unbroken[0] / TIMELINE_FILE, read_run(unbroken[0])
    events, spans = trace_events(path), run_files.timeline
    assert_nested(events)
    assert {span.lane.process for span in spans} == {"learner", "engines", "episodes"}
    logged = Counter()
    for line in run_files.phase("rl"):
        logged.update({name: x for name, x in line.items() if name.startswith("time/")})
    laps = _seconds(span for span in spans if span.lane.process == "learner")
    assert laps["waiting"] == pytest.approx(logged["time/waiting_s"], abs=0.5)
    learned = laps["update"] + laps["save"] + laps["publish"]
    assert learned == pytest.approx(logged["time/learner_s"], abs=0.5)
    trained = {event["ts"] for event in events if event.get("args", {}).get("phase") == "train"}
    # Some of the groups that are ahead are complete, and not trained on, when the run ends.
    assert len(trained) >= run_files.summary.episodes
    first = min(trained) / 1e6  # after the evaluation of the warm start
    last = max(span.end for span in spans if span.name == "update")
    own = (s for s in spans if s.lane.process == "episodes" and first <= s.start < last)
    parts = _seconds(own)
    assert parts["verdict"] == pytest.approx(logged["time/verifier_s"], abs=0.01)
    assert 0 < parts["reply"] <= logged["time/generation_s"]  # as the agent sees it
    totals = sum_bubbles(spans)
    idle = sum(row.learner for row in totals.rows) / 100 * totals.seconds
    assert idle == pytest.approx(laps["waiting"] + laps["evaluation"], rel=0.02)
    assert ">Bubbles<" in render(run_files)


def _seconds(spans):
    sums = Counter()
    for span in spans:
        sums[span.name] += span.end - span.start
    return sums


def test_a_finished_run_is_left_alone(unbroken, runtime_name):
    workdir, _ = unbroken
    before = (workdir / "metrics.jsonl").read_bytes()
    assert "is finished" in run_here(workdir, runtime_name, *LEARNING)
    assert (workdir / "metrics.jsonl").read_bytes() == before


def test_a_run_that_is_stopped_and_then_killed_ends_like_an_unbroken_one_on_other_workers(
    unbroken, tmp_path, runtime_name
):
    expected, _ = unbroken
    actors = json.loads((expected / "config.json").read_text())["rollout"]["actors"]
    others = [f"--config.rollout.actors={actors + 1}", "--config.rollout.episodes_per_actor=3"]
    workdir = tmp_path / "broken"

    stopped = begin(workdir, runtime_name, *LEARNING)
    interrupt(stopped, workdir, signal.SIGTERM, step=1)
    _, errors = stopped.communicate(timeout=60)
    assert stopped.returncode == 130, errors
    assert errors == "interrupted: the same command continues from the last checkpoint\n"
    checkpoints = [each.name for each in (workdir / "checkpoints").iterdir()]
    assert f"step_{len(rl_lines(workdir)):08d}" in checkpoints, "the newest step is saved"

    killed = begin(workdir, runtime_name, *LEARNING)
    interrupt(killed, workdir, signal.SIGKILL, step=3)
    killed.wait(30)
    output = run(workdir, runtime_name, *LEARNING, *others, "--resume")
    assert "continuing the unfinished run" in output
    events = [event.kind for event in read_events(workdir / "events.jsonl").records]
    assert events.count("resumed") == 2
    assert_nested(trace_events(workdir / TIMELINE_FILE))
    assert len(processes_of(read_run(workdir).timeline)) == 3
    assert rl_lines(workdir) == rl_lines(expected)
    jax.tree.map(np.testing.assert_array_equal, last_state(workdir), last_state(expected))


@pytest.mark.slow
def test_a_run_that_was_stopped_for_long_makes_way_for_the_same_command(
    unbroken, tmp_path, runtime_name
):
    expected, _ = unbroken
    workdir = tmp_path / "stopped"
    stopped = begin(workdir, runtime_name, *LEARNING)
    interrupt(stopped, workdir, signal.SIGSTOP, step=2)
    assert "continuing the unfinished run" in run(workdir, runtime_name, *LEARNING)
    files = contents(workdir)
    stopped.send_signal(signal.SIGCONT)
    assert stopped.wait(60) == 2
    assert "has taken over" in stopped.stderr.read().splitlines()[-1]
    assert rl_lines(workdir) == rl_lines(expected)
    jax.tree.map(np.testing.assert_array_equal, last_state(workdir), last_state(expected))
    # It recorded why it ended, and touched nothing else but its own curves.
    changed = {name for name, content in contents(workdir).items() if files.get(name) != content}
    records = {"traceback.txt", "library.log", "events.jsonl"}
    assert {name for name in changed if not name.startswith("tensorboard/")} <= records


def contents(workdir):
    """All files, but for the states that no manifest names: a save that was in flight when its
    process was stopped goes on when it wakes up, in a folder of its own."""
    complete = {
        state_folder(path.parent) for path in workdir.glob("checkpoints/step_*/manifest.json")
    }
    states = set(workdir.glob("checkpoints/step_*/state_*")) - complete
    files = (file for file in workdir.rglob("*") if file.is_file())
    return {
        str(file.relative_to(workdir)): file.read_bytes()
        for file in files
        if states.isdisjoint(file.parents)
    }
