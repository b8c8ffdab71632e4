"""The survival benchmark: what it makes of what it sees, and that it measures real runs."""

import dataclasses
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from ale_jax.command_line import read_config, read_flags
from ale_jax.learn.state import TrainState
from ale_jax.system.checks import checked_config
from benchmarks.survival import __main__ as program
from benchmarks.survival import chaos, evidence, faults, history, launcher, trials
from benchmarks.survival.evidence import Goods
from benchmarks.survival.plan import FULL, QUICK
from benchmarks.survival.processes import MARK, Family
from benchmarks.survival.runs import ROOT, Bench
from benchmarks.survival.summary import BARS, REQUIRED, Bar, together
from benchmarks.survival.trials import BUG, HEALED, HUNG, SAID, Trial

pytestmark = pytest.mark.slow


def restored(step):
    return {"kind": "restored", "step": step}


def begun(group, member=0):
    return {"kind": "begun", "member": [group, member]}


def back(group, versions, member=0):
    return {"kind": "back", "member": [group, member], "versions": versions}


def trained(step, *groups, oldest=0):
    return {"kind": "trained", "step": step, "groups": groups, "oldest": oldest}


def dropped(group):
    return {"kind": "dropped", "group": group}


def test_an_interruption_undoes_steps_and_drops_after_the_checkpoint():
    lines = [restored(0), trained(1, 0), dropped(9), trained(2, 1), dropped(8), trained(3, 2)]
    lines += [trained(4, 7), dropped(6), restored(2), trained(3, 3, oldest=2)]
    found = history.follow(lines, max_age=2)
    assert found.trained == [0, 1, 3] and found.dropped == {9: 1} and found.oldest == 2
    assert found.lost(open_groups=[2, 5], taken=range(6)) == {4}
    assert found.trained_twice() == 0
    found.steps[4] = [1, 7]
    assert found.trained_twice() == 1


def test_episodes_that_begin_again_are_not_kept():
    # Of six that are back, group 0 is trained, 3 is too old, and 4 is of weights that are lost.
    lines = [restored(0), *(back(group, [2, 2]) for group in (0, 1, 2, 5)), back(3, [0, 1])]
    lines += [trained(3, 0), back(4, [3, 4])]
    lines += [restored(3), begun(2), begun(3), begun(4), trained(4, 1)]
    found = history.follow(lines, max_age=2)
    assert (found.kept, found.replayed) == (2, 1)


def test_a_life_without_a_step_does_not_count_and_what_was_replayed_is_not_wanted_twice():
    lines = [restored(0), back(1, [0, 0]), trained(1, 0), restored(1), begun(1)]
    assert history.follow(lines, max_age=2).replayed == 0
    lines += [restored(1), begun(1), trained(2, 5), restored(2), begun(1), trained(3, 6)]
    found = history.follow(lines, max_age=2)
    assert (found.kept, found.replayed) == (0, 1)


@pytest.fixture
def run_folder(tmp_path):
    """A run of six steps as its files would be, with checkpoints of the last two."""
    lines = [{"phase": "sft", "step": 1}, *({"phase": "rl", "step": n} for n in range(1, 7))]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(text + '{"phase": "rl", "st')
    for step in (5, 6):
        checkpoint = tmp_path / "checkpoints" / f"step_{step:08d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "manifest.json").write_text("{}")
        (checkpoint / "state").write_text("weights")
    return tmp_path


def test_what_is_good_may_be_added_to_and_rotated(run_folder):
    goods = Goods.of(run_folder)
    assert (evidence.newest_step(run_folder), evidence.newest_checkpoint(run_folder)) == (6, 6)
    with (run_folder / "metrics.jsonl").open("a") as file:
        file.write('ep": 7}\n')
    for step in (7, 8):
        new = run_folder / "checkpoints" / f"step_{step:08d}"
        (run_folder / "checkpoints" / f"step_{step - 2:08d}").rename(new)
    assert goods.lost() == []


def test_lines_after_the_newest_intact_checkpoint_may_be_made_anew(run_folder):
    for stopped, faults_found in ((True, 0), (False, 1)):
        goods = Goods.of(run_folder, damaged=(6,), stopped=stopped)
        lines = (run_folder / "metrics.jsonl").read_text().splitlines(keepends=True)
        (run_folder / "metrics.jsonl").write_text("".join(lines[:6]))
        assert len(goods.lost()) == faults_found
        (run_folder / "metrics.jsonl").write_text("".join(lines))


@pytest.mark.parametrize("harm", ["renamed", "damaged", "cut", "rewritten"])
def test_what_is_lost_is_noticed(run_folder, harm):
    goods = Goods.of(run_folder)
    checkpoint, metrics = evidence.checkpoints(run_folder)[6], run_folder / "metrics.jsonl"
    match harm:
        case "renamed":
            checkpoint.rename(checkpoint.with_name("step_00000006.damaged"))
        case "damaged":
            evidence.damage(checkpoint)
        case "cut":
            metrics.write_bytes(metrics.read_bytes()[:20])
        case "rewritten":
            metrics.write_bytes(metrics.read_bytes().replace(b'"step": 2', b'"step":  2'))
    assert len(goods.lost()) == 1


@pytest.mark.parametrize(
    ("goes_on", "code", "printed", "outcome"),
    [
        (True, None, "", HEALED),
        (False, 0, "", HEALED),
        (False, None, "", HUNG),
        (False, 2, "step 1\nerror: type this\n", SAID),
        (False, 2, "error: type this\nand more\n", BUG),
        (False, 2, f"{trials.TRACEBACK}:\n  x\nerror: type this\n", BUG),
        (False, 1, "error: type this\n", BUG),
        (True, -6, "", BUG),
    ],
)
def test_an_outcome_is_judged_by_exit_code_and_terminal(goes_on, code, printed, outcome):
    judged, wrong = trials.judge(goes_on, code, printed)
    assert judged == outcome and bool(wrong) == (outcome == BUG)


def test_what_was_lost_makes_a_healed_fault_a_bug_but_a_hang_stays_one():
    of = (Trial.of("a", outcome, 1.0, 0, "", ["lost"]).outcome for outcome in (HEALED, HUNG))
    assert list(of) == [BUG, HUNG]


def test_bars_compare_with_numbers_and_with_other_figures():
    bar = Bar("saved", "", "tried", 9.0)
    assert bar.holds({"saved": 3, "tried": 3}) is True
    assert bar.holds({"saved": 2, "tried": 3}) is bar.holds({"saved": 10, "tried": 3}) is False
    assert bar.holds({"saved": 3}) is bar.holds({"tried": 3}) is None
    assert len({bar.key for bar in BARS}) == len(BARS)


def test_hangs_of_all_parts_are_added():
    total = together([{"hangs": 1}, {"groups_lost": 0}, {"hangs": 2}])
    assert (total["hangs"], total["groups_lost"], total["sync_kills"]) == (3, 0, None)
    assert together([{"groups_lost": 0}])["hangs"] is None and total.keys() == {*REQUIRED}


def test_orphans_and_what_hides_its_environment_are_found_and_ended(tmp_path):
    line = "import os, subprocess\nfor clean in ({}, dict(os.environ)):\n"
    line += "    child = subprocess.Popen(['sleep', '600'], env=clean, start_new_session=True)\n"
    line += "    print(child.pid, flush=True)\ninput()\n"
    with subprocess.Popen(
        [sys.executable, "-c", line],
        env={MARK: str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        children = {int(parent.stdout.readline()) for _ in range(2)}
        family = Family(str(tmp_path))
        assert {each.pid for each in family.all()} == {parent.pid, *children}
        parent.kill()
    assert {each.pid for each in family.all()} == children
    assert family.end() == 2 and family.all() == []


def test_what_is_not_known_is_refused(capsys):
    with pytest.raises(SystemExit):
        program.main(["--only=luck"])
    assert "'luck': choose among faults" in capsys.readouterr().err
    assert {*QUICK.faults} < {*faults.FAULTS} and len(faults.FAULTS) == 14


def test_a_part_that_fails_does_not_keep_others_from_being_measured(monkeypatch, capsys):
    left = []

    def broken(measurement):
        run = measurement._bench.plain("broken")
        run.line[:] = ["sleep", "600"]
        run.start()
        left.append(run)
        raise OSError("no disk")

    def works(measurement):
        assert [run.family.all() for run in left] == [[]]
        return 1.0

    parts = {"faults": (broken, None), "memory": (works, program.PARTS["memory"][1])}
    monkeypatch.setattr(program, "PARTS", parts)
    assert program.main(["--only=faults,memory"]) == 1
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert answer["failures"] == {"faults": "OSError: no disk"}
    assert answer["restore_memory_ratio"] == 1.0


def test_a_kill_for_which_there_is_no_process_does_not_count():
    left = [SimpleNamespace(send=lambda number: None)]
    family = SimpleNamespace(workers=lambda: left, sandboxes=list, named=lambda program: [])
    havoc = chaos.Havoc(SimpleNamespace(family=family), QUICK)
    for role in ("worker", "sandbox", "raylet", "head"):
        havoc._kill(role)
    assert havoc.kills == 1


@pytest.mark.parametrize("plan", [FULL, QUICK])
def test_the_config_of_chaos_is_valid(plan, tmp_path):
    run = Bench(tmp_path, []).run("chaos", *plan.chaos_options, config=plan.chaos_config)
    _, flags, overrides, _ = read_flags(run.line[2:])
    checked_config(read_config(flags.config, overrides))


def test_all_that_the_launcher_replaces_is_there(tmp_path):
    line = "from benchmarks.survival.launcher import FAULTS\nfor fault in FAULTS.values(): fault()"
    own = {MARK: str(tmp_path / "mark"), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", line], env=os.environ | own, cwd=ROOT)
    assert done.returncode == 0


def test_the_weights_that_an_update_is_given_are_spoiled_once(monkeypatch, tmp_path):
    monkeypatch.setenv(MARK, str(tmp_path / "mark"))
    monkeypatch.setattr(launcher.UpdateStep, "__call__", lambda self, state, batches, count: state)
    launcher.nan_in_weights()
    step, state = object.__new__(launcher.UpdateStep), TrainState({"w": jnp.ones(2)}, (), 0)
    seen = [bool(jnp.isnan(step(state, [], 1.0).params["w"]).all()) for _ in range(4)]
    assert seen == [False, False, True, False] and (tmp_path / "mark").exists()


def test_a_fault_and_a_restore_are_measured_on_real_runs(monkeypatch, capsys, tmp_path):
    plan = dataclasses.replace(QUICK, faults=("all_checkpoints_damaged",))
    monkeypatch.setattr(program, "QUICK", plan)
    out = tmp_path / "results" / "survival.json"
    assert program.main(["--quick", "--only=faults,memory", f"--out={out}"]) == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert answer == json.loads(out.read_text())
    (trial,) = answer["faults"]
    assert (trial["outcome"], trial["code"], trial["notes"]) == (SAID, 2, [])
    assert "nothing was changed" in trial["last_line"] and "--overwrite" in trial["last_line"]
    assert (answer["faults_tried"], answer["faults_healed_or_said"], answer["hangs"]) == (1, 1, 0)
    assert 1.0 <= answer["restore_memory_ratio"] <= 1.05
