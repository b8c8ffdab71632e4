"""The door: what is typed, what runs, what is answered, and the exit code."""

import contextlib
import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys

import pytest

from ale_jax.config.engine import Sampling
from ale_jax.config.worlds import Domain
from ale_jax.configs.algorithms import PRESETS
from ale_jax.errors import RolloutsFailed
from ale_jax.files import write_json
from ale_jax.launch import main
from ale_jax.sandbox.api import SandboxStartError
from ale_jax.subcommands import COMMANDS, interrupted
from ale_jax.system import serve
from ale_jax.system.authors_sampling import Defaults
from ale_jax.system.hosts import run as hosts_run
from ale_jax.system.hosts import start
from ale_jax.system.hosts.commands import Alone
from ale_jax.system.workdir import RunState
from tests.monitor.fake_run import SUMMARY

SMOKE = "--config=configs/smoke.py"


class Runs:
    """Stands in for the controller: notes what it was given, then does what a run may do."""

    def __init__(self, error=None):
        self.seen = []
        self.error = error

    def __call__(self, config, workdir, stop, processes):
        self.seen.append((config, workdir.state))
        (workdir.path / "metrics.jsonl").write_text("{}\n")
        if self.error:
            raise self.error
        write_json(workdir.path / "summary.json", dataclasses.asdict(SUMMARY))


@pytest.fixture
def launch(tmp_path, monkeypatch, pytestconfig, capsys):
    """launch(run, *arguments) -> (exit code, stdout, stderr), in the repository's folder."""
    monkeypatch.chdir(pytestconfig.rootpath)

    def call(run, *arguments):
        command = [word for word in arguments[:1] if word in COMMANDS]
        rest = arguments[len(command) :]
        code = main(["launch", *command, f"--workdir={tmp_path / 'run'}", *rest], run)
        return code, *capsys.readouterr()

    return call


def refused(answer):
    """The one line of a refusal."""
    code, _, err = answer
    assert code == 2 and err.startswith("error: ") and err.count("\n") == 1, answer
    return err


def test_a_config_is_run_with_its_overrides(launch):
    runs = Runs()
    code, _, err = launch(
        runs,
        SMOKE,
        "--config.rl.alpha=0.5",
        "--config.rl.steps=7",
        "--config.model.tie_embeddings=false",
        "--noconfig.model.norm_topk_prob",
        "--config.engine.prefill_tokens=(16, 64)",
        "--config.worlds.train=({'world':'shell','families':('sort','log')},)",
        "--config.rollout.runtime=bubblewrap",
    )
    assert (code, err) == (0, "")
    [(config, state)] = runs.seen
    assert state is RunState.NEW
    assert (config.rl.alpha, config.rl.steps) == (0.5, 7)
    assert (config.model.tie_embeddings, config.model.norm_topk_prob) == (False, False)
    assert config.engine.prefill_tokens == (16, 64)
    assert config.worlds.train == (Domain("shell", ("sort", "log")),)
    assert config.rollout.runtime == "bubblewrap"


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ([], "--config is missing: choose one of one_gpu, quickstart"),
        (["--config=configs/nope.py"], "there is no config configs/nope.py: choose one of"),
        (
            [f"{SMOKE}:pg"],
            "ValueError: algorithm 'pg' is unknown: choose one of ipa, ipa_balanced, topr",
        ),
        ([SMOKE, "--config.rl.alhpa=1"], "config.rl.alhpa is unknown: did you mean config.rl.al"),
        ([SMOKE, "--config.algo.name=grpo"], "algo.name grpo does not choose an algorithm, and t"),
        ([SMOKE, "--config.rl=1"], "config.rl is a section: choose one of rl.alpha"),
        (
            [SMOKE, "--config.rl.steps=ten"],
            "config.rl.steps is 'ten': expected int, e.g. --config.rl.steps=2\n",
        ),
        (
            [SMOKE, "--config.rl.alpha=x"],
            "config.rl.alpha is 'x': expected float, e.g. --config.rl.alpha=1.0\n",
        ),
        ([SMOKE, "--config.rl.fill_queue=maybe"], "expected bool, e.g. --config.rl.fill_queue=f"),
        ([SMOKE, "--config.engine.prefill_tokens=(1,"], "prefill_tokens='(32, 128)'\n"),
        ([SMOKE, "--steps=3"], "--steps is unknown: did you mean --config.rl.steps=3?\n"),
        ([SMOKE, "--rl.alpha=2"], "--rl.alpha is unknown: did you mean --config.rl.alpha=2?\n"),
        ([SMOKE, "--fill_queue"], "did you mean --config.rl.fill_queue?\n"),
        (["--steps=3"], "--steps is unknown: did you mean --config.rl.steps=3?\n"),
        ([SMOKE, "--clip_norm=2"], "config.warm_start_optimizer.clip_norm=2?\n"),
        ([SMOKE, "--clip_norm=2"], "did you mean --config.critics.optimizer.clip_norm=2 or --con"),
        ([SMOKE, "--config.rl.alpha=-1"], "config.rl: alpha -1.0 must be in"),
        ([SMOKE, "--config.learn.microbatch_rows=7"], "set learn.microbatch_rows to 8"),
        ([SMOKE, "--config.rl.steps", "3"], "argument '3' is not understood"),
        ([SMOKE, "--wrokdir=x"], "Did you mean: workdir"),
        ([SMOKE, "--config.weights=/nowhere"], "no checkpoint at /nowhere: give a Hugging Face f"),
        ([SMOKE, "--config.tokenizer.path=/nowhere"], "no tokenizer.json in /nowhere: give a fol"),
        (["plan", SMOKE, "--config.weights=/nowhere"], "no checkpoint at /nowhere: give a Huggin"),
        (["plan", SMOKE, "--config.tokenizer.path=/nowhere"], "no tokenizer.json in /nowhere: gi"),
        ([SMOKE, "--workdir="], "--workdir is missing"),
        ([SMOKE, "--workdir=setup.py/run"], "cannot be used (Not a directory"),
        ([SMOKE, "--resume"], "holds no run to resume"),
        ([SMOKE, "--resume", "--overwrite"], "exclude each other"),
        ([SMOKE, "--coordinator=h:1"], "--coordinator=h:1 is of several processes: say how many"),
        (["serve", SMOKE, "--port=65536"], "--port=65536 must be from 0, for a free one, to 65535"),
        (["serve"], "run holds no run: check --workdir, or name a config by --config"),
        (["export", "--out=x", "--format=atif", SMOKE], "--format=atif is for --episodes"),
        (["eval", SMOKE, "--out=x", "--policy=hf:"], "--policy=hf: names no weights: write hf:DIR"),
        (["eval", SMOKE, "--out=x", "--workers=2"], "--workers=2 is for endpoints and weights"),
        ([SMOKE, "--config.weights=/tmp"], "no checkpoint at /tmp: it has no config.json: give a"),
    ],
)
def test_a_mistake_is_one_line_with_the_remedy_and_nothing_runs(launch, arguments, answer):
    runs = Runs()
    assert answer in refused(launch(runs, *arguments))
    assert runs.seen == []


FOLDERS = {
    "another program's": ([], "is not empty and holds no run: choose a new folder"),
    "another config's": (["--config.seed=9"], "(seed 0 -> 9): choose another folder, or give --ov"),
    "damaged": ([], "config.json"),
    "nowhere": (["export", "--out=x"], "holds no run: check --workdir"),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_that_will_not_do_is_one_line_with_the_remedy(launch, tmp_path, kind):
    arguments, answer = FOLDERS[kind]
    if kind in ("another config's", "damaged"):
        launch(Runs(), SMOKE)
    if kind == "damaged":
        (tmp_path / "run" / "config.json").write_text("{")
    if kind == "another program's":
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "notes.txt").write_text("mine")
    runs = Runs()
    assert answer in refused(launch(runs, *arguments, SMOKE))
    assert runs.seen == []


def test_a_mistake_before_the_folder_is_claimed_leaves_no_folder(launch, tmp_path):
    refused(launch(Runs(), SMOKE, "--config.learn.microbatch_rows=7"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("def get_config(:", "SyntaxError"),
        ("import nowhere_to_be_found", "ModuleNotFoundError: No module named"),
        ("x = 1", "KeyError: 'get_config'"),
        ("def get_config(): return {}", "must return a ConfigDict, not {}"),
        (
            "from ml_collections import ConfigDict\ndef get_config(): return ConfigDict()",
            "config.name is missing",
        ),
    ],
)
def test_a_broken_config_file_is_named(launch, tmp_path, source, answer):
    path = tmp_path / "broken.py"
    path.write_text(source)
    assert answer in refused(launch(Runs(), f"--config={path}"))


def test_an_unfinished_run_goes_on_and_a_finished_one_is_left_alone(launch, tmp_path):
    stopped, runs = Runs(KeyboardInterrupt()), Runs()
    code, _, err = launch(stopped, SMOKE)
    assert code == 130
    assert err == "interrupted: the same command continues from the last checkpoint\n"

    code, out, _ = launch(runs, SMOKE)
    assert code == 0 and f"continuing the unfinished run in {tmp_path / 'run'}" in out
    assert [state for _, state in runs.seen] == [RunState.UNFINISHED]

    code, out, _ = launch(runs, SMOKE)
    assert code == 0 and "is finished: --overwrite starts over" in out and len(runs.seen) == 1

    code, out, _ = launch(runs, SMOKE, "--overwrite")
    assert code == 0 and f"is now in {tmp_path / 'run.old-1'}" in out
    assert [state for _, state in runs.seen] == [RunState.UNFINISHED, RunState.NEW]


def test_a_finished_run_gets_the_report_that_it_ended_without(launch, tmp_path):
    launch(Runs(), SMOKE)
    report = tmp_path / "run" / "report.html"
    assert not report.exists()
    code, out, _ = launch(Runs(), SMOKE)
    assert code == 0 and f"report: {report}\n" in out and "<html" in report.read_text()
    assert "report:" not in launch(Runs(), SMOKE)[1]  # it is there

    os.utime(report, (0, 0))  # that of the run before it was made longer
    assert "report:" in launch(Runs(), SMOKE)[1] and report.stat().st_mtime > 0


def test_resume_makes_a_run_longer(launch, tmp_path):
    runs = Runs()
    launch(runs, SMOKE)
    assert "rl.steps 2 -> 5" in refused(launch(runs, SMOKE, "--config.rl.steps=5"))
    code, _, _ = launch(runs, SMOKE, "--config.rl.steps=5", "--resume")
    assert code == 0 and [config.rl.steps for config, _ in runs.seen] == [2, 5]


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (SandboxStartError("docker:\n  no daemon"), "error: docker: no daemon (traceback in "),
        (ValueError("tokenizer.path x\nis empty"), "error: tokenizer.path x is empty"),
        (OSError(errno.ENOSPC, "No space left on device"), "free some space, then the same"),
    ],
)
def test_an_error_of_the_run_is_one_line_and_its_traceback_is_kept(launch, tmp_path, error, answer):
    assert answer in refused(launch(Runs(error), SMOKE))
    trace = (tmp_path / "run" / "traceback.txt").read_text()
    assert trace.startswith("Traceback") and "in __call__" in trace


def test_a_full_disk_is_said_with_what_the_same_command_does_then(monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ale_jax.evaluation.command.run_compare", full)
    assert main(["launch", "compare", "a", "b"]) == 2
    said = capsys.readouterr().err
    assert said.endswith("free some space, then the same command starts over\n")


def test_a_server_ends_with_its_engine(launch, monkeypatch):
    def fail():
        raise RolloutsFailed("the engine failed")

    served = contextlib.nullcontext(
        serve.Serving("url", "key", "step 3", Defaults(Sampling(), "the run"), fail)
    )
    monkeypatch.setattr(serve, "serving", lambda *_, **__: served)
    answer = launch(None, "serve", SMOKE)
    assert "the engine failed" in refused(answer) and "step 3 answers" in answer[1]


@pytest.mark.parametrize(
    ("typed", "shown"),
    [("--debug", True), ("--debug=true", True), ("-debug", True), ("--debug=false", False)],
)
def test_debug_adds_where_it_was_raised(launch, typed, shown):
    code, _, err = launch(Runs(ValueError("boom")), SMOKE, typed)
    assert code == 2 and err.splitlines()[-1].startswith("error: boom (traceback in ")
    assert ("in __call__" in err) == shown


def test_debug_adds_where_a_flag_was_refused(launch):
    code, _, err = launch(Runs(), SMOKE, "--debug", "--wrokdir=x")
    assert code == 2 and err.startswith("Traceback") and "Did you mean: workdir" in err


def test_a_bug_is_not_reported_as_the_users_mistake(launch):
    with pytest.raises(AssertionError):
        launch(Runs(AssertionError("ours")), SMOKE)


def test_help_says_what_may_be_typed(launch):
    code, out, _ = launch(Runs(), "--help")
    assert code == 0 and "--config.SECTION.FIELD=VALUE" in out and "--overwrite" in out


def test_help_names_configs_and_algorithms(launch):
    _, out, _ = launch(Runs(), "--help")
    assert {"Configs:", "Algorithms:"} <= set(out.splitlines())
    described = dict(line.split(maxsplit=1) for line in out.splitlines() if " " in line.strip())
    assert described["smoke"].startswith("Do all parts of a run work together?")
    assert "experiments/vault" in described and described.keys() >= PRESETS.keys()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--config=smoke", "the same command continues from the last checkpoint"),
        ("eval --config=smoke", "the same command plays what is left"),
        ("compare evals/a evals/b", "the same command starts over"),
    ],
)
def test_an_interrupted_command_says_how_it_goes_on(line, says):
    assert interrupted(["ale-jax", *line.split()]) == says


RUN_UNTIL_INTERRUPTED = """
import sys, time
from ale_jax.launch import main
def run(config, workdir, stop, processes):
    print("running", flush=True)
    while True:
        stop.check()
        time.sleep(0.01)
sys.exit(main(sys.argv, run))
"""


@pytest.mark.heavy
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_real_process_with_130_and_one_line(tmp_path, pytestconfig, sign):
    process = subprocess.Popen(
        [sys.executable, "-c", RUN_UNTIL_INTERRUPTED, SMOKE, f"--workdir={tmp_path / 'run'}"],
        cwd=pytestconfig.rootpath,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "running\n"
    process.send_signal(sign)
    _, err = process.communicate()
    assert process.returncode == 130, err
    assert [line[:13] for line in err.splitlines()] == ["interrupted: "], err


@pytest.mark.heavy
def test_a_typing_mistake_is_answered_before_jax_is_loaded(pytestconfig):
    code = (
        "import sys; from ale_jax.launch import main\n"
        f"assert main(['launch', '{SMOKE}', '--config.rl.alhpa=1']) == 2\n"
        "print([m for m in ('jax', 'ray', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=pytestconfig.rootpath, capture_output=True, text=True
    )
    assert done.stdout == "[]\n", done.stderr


def test_an_algorithm_is_chosen_by_name(launch, tmp_path):
    runs = Runs()
    launch(runs, f"{SMOKE}:grpo", "--config.algo.loss.clip_high=0.3")
    [(config, _)] = runs.seen
    assert config.algo.name == "grpo"
    assert (config.algo.loss.clip_low, config.algo.loss.clip_high) == (0.2, 0.3)


def test_the_config_in_the_folder_is_the_one_that_ran(launch, tmp_path):
    launch(Runs(), SMOKE, "--config.seed=3")
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stored["seed"] == 3 and stored["algo"]["name"] == "ipa"


@pytest.mark.parametrize("have_met", [True, False])
def test_a_process_waits_for_others_only_after_it_has_met_them(launch, monkeypatch, have_met):
    waits = []

    @contextlib.contextmanager
    def led(config, coordinator):
        if not have_met:
            raise KeyboardInterrupt  # while it listens for the others
        yield Alone()

    monkeypatch.setattr(hosts_run, "led", led)
    monkeypatch.setattr(start, "disconnect", lambda: waits.append(True))
    code, _, _ = launch(Runs(KeyboardInterrupt()), SMOKE)
    assert (code, bool(waits)) == (130, have_met)


@pytest.mark.heavy
def test_an_interrupted_process_that_has_others_does_not_wait_for_them_at_its_end():
    program = """
import atexit, sys
from ale_jax import launch
atexit.register(lambda: print("waits for the others"))
launch.main, launch._has_others = lambda argv: 130, lambda: True
sys.exit(launch.main_program(sys.argv))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, ""), done
