"""A run that is killed while verdicts wait goes on with the same command, and leaves nothing."""

import json
import signal
import threading
import time

import pytest

from ale_jax.monitor.evaluations import SUMMARY_FILE
from benchmarks.survival import evidence
from benchmarks.survival.history import read_history
from benchmarks.survival.plan import LEARNS
from benchmarks.survival.runs import START_S, Bench
from tests.runtimes import picked
from tests.system.conftest import SPEC
from tests.worlds.bridges.test_judge import Endpoint, honest

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

STEPS, GROUPS, MEMBERS = 2, 2, 2
GONE_S = 240.0  # on a busy machine processes of Ray were still there after one minute
WORLD = """
from ale_jax.worlds import Rows, Step, World
from ale_jax.worlds.bridges.judge import endpoint_of, is_right

class Judged(World):
    families = {"easy": Rows("easy.jsonl")}
    is_judged_apart = True

    def __init__(self, judge):
        self._judge = endpoint_of(judge)

    def sandbox(self, item, spec):
        return spec

    def reset(self, item, sandbox):
        self._question = item["question"]
        return self._question

    def step(self, reply):
        self._said = reply
        return Step(done=True)

    def verdict(self):
        return float(is_right(self._judge, self._question, f"It is {self._said}.", "Paris"))

    def oracle(self, item):
        return ("Paris",)
"""


class Judge(Endpoint):
    """After the first training step it makes one more verdict, and then none before `gate`. notes:
    of the run (benchmarks/survival/watch.py)."""

    def __init__(self):
        super().__init__()
        self.notes, self.gate, self.after_first = None, threading.Event(), 0
        self.says = self.held
        self._lock = threading.Lock()

    def held(self, asked):
        with self._lock:
            self.after_first += '"trained"' in self.notes.read_text()
            waits = self.after_first > 1
        if waits:
            assert self.gate.wait(2 * START_S)
        return honest(asked)

    def handle_error(self, request, client_address):
        """Whoever asked was killed."""


@pytest.fixture
def judge():
    with Judge() as server:
        yield server
        server.gate.set()


@pytest.fixture
def run(judge, tmp_path, request):
    picked("bubblewrap", SPEC)  # its sandboxes are processes of the run
    (tmp_path / "judged_apart.py").write_text(WORLD)
    rows = [{"question": f"Capital of country {number}?"} for number in range(50)]
    (tmp_path / "easy.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    world = {"world": "judged_apart:Judged", "turns": 1, "options": {"judge": judge.name}}
    options = {
        "worlds.folder": tmp_path,
        "worlds.train": (world,),
        "worlds.held_out": (),
        "eval.tasks": 1,
        "eval.held_out_tasks": 0,
        "warm_start.max_steps": 0,
        "rl.alpha": 0.0,
        "rl.steps": STEPS,
        "rl.groups_per_step": GROUPS,
        "rl.group_size": MEMBERS,
        "rollout.runtime": "bubblewrap",
        "rollout.workers": request.param,
        "rollout.reward_workers": 1,
        "deadlines.turn_seconds": START_S,
        "deadlines.placement_seconds": START_S,
        "deadlines.watchdog_seconds": 1.0,  # so that the run says what it waits for
    }
    line = [f"--config.{name}={value}" for name, value in options.items()]
    with Bench.open() as bench:
        run = bench.run("killed", *LEARNS, *line, fault="watch")
        judge.notes = run.mark
        yield run


@pytest.mark.parametrize("run", ["ray", "threads"], indirect=True)
def test_a_run_that_is_killed_while_verdicts_wait_goes_on(run, judge):
    run.start()
    run.require_steps(1)
    before, waiting = len(run.printed()), f" and {GROUPS * MEMBERS - 1} for verdicts"
    run.require(lambda: waiting in run.printed()[before:], "no verdict waits")
    run.send(signal.SIGKILL)
    assert run.finish() == -signal.SIGKILL and evidence.newest_step(run.folder) == 1
    # The judge still says nothing: whoever waits for it has to end all the same.
    assert gone(run), f"the killed run has left {run.family.all()}"

    judge.gate.set()
    run.start()
    assert run.finish(2 * START_S) == 0, run.printed()
    assert gone(run), f"the run has left {run.family.all()}"
    history = read_history(run.mark, max_age=0)
    assert history.steps == {1: [0, 1], 2: [2, 3]} and not history.dropped
    assert [line["step"] for line in evidence.metrics(run.folder)] == [1, 2]
    summary = json.loads((run.folder / SUMMARY_FILE).read_text())
    assert summary["episodes"] == STEPS * GROUPS * MEMBERS


def gone(run):
    """Whether all processes of a run, the sandboxes' too, end after its own."""
    deadline = time.monotonic() + GONE_S
    while (left := run.family.all()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not left
