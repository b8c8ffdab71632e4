"""Two runs never share a folder, and nothing that somebody may want is lost."""

import json
import os
import subprocess
import sys

import pytest

from ale_jax.system.lease import Lease
from ale_jax.system.workdir import RunState, Workdir, require_claimable
from tests.system.configs import smoke_config

pytestmark = pytest.mark.heavy

CONFIG = smoke_config()


def claim(path, config=CONFIG, **choices):
    """Claims the folder, which does what was foretold without a claim."""
    try:
        foretold = require_claimable(path, config, **choices)
    except ValueError as error:
        foretold = str(error)
    try:
        workdir = Workdir.claim(path, config, **choices)
    except ValueError as error:
        assert str(error) == foretold
        raise
    state, changes = foretold
    assert workdir.changes == changes
    assert workdir.state is (RunState.UNFINISHED if changes else state)
    return workdir


def begin(path, config=CONFIG):
    """What a run that was interrupted leaves behind."""
    with claim(path, config) as workdir:
        (workdir.path / "metrics.jsonl").write_text('{"phase": "rl", "step": 1, "seconds": 1}\n')


def finish(path):
    begin(path)
    (path / "summary.json").write_text("{}")


def claim_and_free(path, config=CONFIG, **choices):
    with claim(path, config, **choices) as workdir:
        return workdir


def stored_config(path):
    return json.loads((path / "config.json").read_text())


def test_a_new_folder_is_made_and_holds_the_config(tmp_path):
    workdir = claim_and_free(tmp_path / "a" / "b")
    assert workdir.state is RunState.NEW and workdir.moved is None
    assert workdir.checkpoints == tmp_path / "a" / "b" / "checkpoints"
    assert stored_config(workdir.path) == json.loads(json.dumps(CONFIG.to_json()))


def test_a_folder_in_use_is_refused_until_it_is_free(tmp_path):
    with claim(tmp_path, CONFIG):
        with pytest.raises(ValueError, match=f"in use by process {os.getpid()} on"):
            claim(tmp_path, CONFIG)
    assert claim_and_free(tmp_path).state is RunState.NEW


HOLDER = """
import sys, time
from ale_jax.system.workdir import Workdir
from tests.system.configs import smoke_config
workdir = Workdir.claim(sys.argv[1], smoke_config())
print("claimed", flush=True)
time.sleep(60)
"""


def test_a_killed_owner_frees_the_folder(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "claimed\n"
    with pytest.raises(ValueError, match=f"in use by process {holder.pid}"):
        claim(tmp_path, CONFIG)
    holder.kill()
    holder.wait()
    assert claim_and_free(tmp_path).state is RunState.NEW


@pytest.mark.parametrize("choices", [{}, {"resume": True}])
def test_a_run_of_a_version_with_other_field_names_is_refused_by_one_line(tmp_path, choices):
    begin(tmp_path)
    stored = stored_config(tmp_path)
    stored["engine"]["slots"] = stored["engine"].pop("max_sequences")
    (tmp_path / "config.json").write_text(json.dumps(stored))
    named = r"another version.*engine.max_sequences, engine.slots\): "
    with pytest.raises(ValueError, match=f"{named}choose another folder"):
        claim(tmp_path, CONFIG, **choices)
    with pytest.raises(ValueError, match=f"{named}install the one that wrote it"):
        Workdir.open(tmp_path, CONFIG)
    assert claim_and_free(tmp_path, overwrite=True).moved


def test_what_a_field_without_effect_is_called_does_not_keep_a_run_from_being_read(tmp_path):
    begin(tmp_path)
    stored = stored_config(tmp_path)
    del stored["eval"]["every"]
    (tmp_path / "config.json").write_text(json.dumps(stored))
    Workdir.open(tmp_path, CONFIG).close()


@pytest.mark.parametrize("choices", [{}, {"resume": True}, {"overwrite": True}])
def test_a_folder_that_is_not_a_run_is_refused_and_left_alone(tmp_path, choices):
    (tmp_path / "config.json").write_text("somebody's")
    with pytest.raises(ValueError, match="not empty and holds no run"):
        claim(tmp_path, CONFIG, **choices)
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]
    assert (tmp_path / "config.json").read_text() == "somebody's"


def test_an_evaluation_that_has_a_lease_is_refused_and_left_alone(tmp_path):
    Lease.take(tmp_path).close()
    (tmp_path / "eval.json").write_text("{}")
    with pytest.raises(ValueError, match="not empty and holds no run"):
        claim(tmp_path, CONFIG)
    assert not (tmp_path / "config.json").exists()


def test_a_start_that_was_killed_while_it_wrote_its_config_begins_again(tmp_path):
    Lease.take(tmp_path).close()
    (tmp_path / ".config.json.x1").write_text("{")
    claim(tmp_path, CONFIG).close()


def test_a_path_that_cannot_be_a_folder_is_refused_with_the_reason(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot be used \(Not a directory.*another --workdir"):
        Workdir.claim(tmp_path / "file" / "run", CONFIG)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere: run it as another user")
def test_a_folder_without_write_access_is_refused_with_the_reason(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match="Permission denied"):
        Workdir.claim(tmp_path / "run", CONFIG)


def test_an_interrupted_run_goes_on_and_a_finished_one_is_known(tmp_path):
    begin(tmp_path)
    assert claim_and_free(tmp_path).state is RunState.UNFINISHED
    resumed = claim_and_free(tmp_path, resume=True)
    assert (resumed.state, resumed.changes) == (RunState.UNFINISHED, "")
    finish(tmp_path)
    assert claim_and_free(tmp_path).state is RunState.FINISHED


def test_a_checkpoint_alone_makes_a_run_unfinished(tmp_path):
    claim_and_free(tmp_path)
    (tmp_path / "checkpoints" / "step_00000000").mkdir(parents=True)
    assert claim_and_free(tmp_path).state is RunState.UNFINISHED


def test_a_start_that_left_no_results_may_be_corrected(tmp_path):
    claim_and_free(tmp_path)
    corrected = smoke_config(rl={"alpha": 0.5})
    assert claim_and_free(tmp_path, corrected).state is RunState.NEW
    assert stored_config(tmp_path)["rl"]["alpha"] == 0.5


def test_another_config_is_refused_with_the_first_five_fields_that_differ(tmp_path):
    begin(tmp_path)
    other = smoke_config(
        seed=1,
        rl={"alpha": 0.25, "group_size": 3},
        rl_optimizer={"learning_rate": 0.5, "b1": 0.5, "b2": 0.5},
    )
    with pytest.raises(ValueError) as refusal:
        claim(tmp_path, other)
    message = str(refusal.value)
    assert "seed 0 -> 1; rl.group_size 2 -> 3; rl.alpha 1.0 -> 0.25" in message
    assert "rl_optimizer.b1 0.9 -> 0.5; and 1 more" in message and "b2" not in message
    assert "--overwrite" in message and "--resume" not in message
    assert stored_config(tmp_path)["seed"] == 0


def test_a_run_can_be_made_longer_but_only_when_asked_to(tmp_path):
    finish(tmp_path)
    longer = smoke_config(rl={"steps": 9}, eval={"every": 3})
    with pytest.raises(ValueError, match="give --resume to continue with these changes"):
        claim(tmp_path, longer)
    claimed = claim_and_free(tmp_path, longer, resume=True)
    assert claimed.state is RunState.UNFINISHED
    assert claimed.changes == "rl.steps 2 -> 9; eval.every 0 -> 3"
    assert stored_config(tmp_path)["rl"]["steps"] == 9
    assert not (tmp_path / "summary.json").exists()
    assert (tmp_path / "metrics.jsonl").exists()
    with pytest.raises(ValueError, match="longer, not shorter"):
        claim(tmp_path, smoke_config(rl={"steps": 8}), resume=True)


def test_resuming_may_not_change_the_numbers(tmp_path):
    begin(tmp_path)
    other = smoke_config(rl={"steps": 9, "alpha": 0.5})
    with pytest.raises(ValueError, match=r"config \(rl.alpha 1.0 -> 0.5\)"):
        claim(tmp_path, other, resume=True)


def test_resuming_needs_a_run(tmp_path):
    with pytest.raises(ValueError, match="no run to resume"):
        claim(tmp_path / "typo", CONFIG, resume=True)


def test_overwriting_moves_the_old_run_aside(tmp_path):
    run = tmp_path / "run"
    for number in (1, 2):
        begin(run)
        workdir = claim_and_free(run, smoke_config(seed=7), overwrite=True)
        assert workdir.state is RunState.NEW
        assert workdir.moved == tmp_path / f"run.old-{number}"
        assert (workdir.moved / "metrics.jsonl").exists()
        assert stored_config(workdir.moved)["seed"] == 0
        assert stored_config(run)["seed"] == 7 and not (run / "metrics.jsonl").exists()


def test_overwriting_nothing_moves_nothing(tmp_path):
    claim_and_free(tmp_path / "run")
    assert claim_and_free(tmp_path / "run", overwrite=True).moved is None
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_run_that_is_in_use_is_not_moved(tmp_path):
    begin(tmp_path / "run")
    with claim(tmp_path / "run", CONFIG):
        with pytest.raises(ValueError, match="in use"):
            claim(tmp_path / "run", CONFIG, overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_resume_and_overwrite_exclude_each_other(tmp_path):
    with pytest.raises(ValueError, match="exclude each other"):
        claim(tmp_path, CONFIG, resume=True, overwrite=True)


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_damaged_config_is_refused_by_name_and_kept(tmp_path, content):
    begin(tmp_path)
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config\.json"):
        claim(tmp_path, CONFIG)
    with pytest.raises(ValueError, match=r"config\.json"):
        Workdir.open(tmp_path, CONFIG)
    assert (tmp_path / "config.json").read_text() == content
    assert claim_and_free(tmp_path, overwrite=True).state is RunState.NEW
