"""What is evaluated of a run stays as it is while the run goes on."""

import shutil
import signal
import subprocess
import sys

import pytest

from ale_jax.system import snapshot as snapshots
from ale_jax.system.snapshot import snapshot
from ale_jax.system.workdir import Workdir
from tests.system.configs import smoke_config


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run"
    with Workdir.claim(path, smoke_config()):
        for name in ("tokenizer", "checkpoints/step_00000001", "checkpoints/step_00000002"):
            (path / name).mkdir(parents=True)
            (path / name / "content").write_text(name)
        (path / "metrics.jsonl").write_text("")
        yield path


def contents(workdir):
    return {str(f.relative_to(workdir.path)) for f in workdir.path.rglob("content")}


def test_a_snapshot_of_a_run_in_use_outlives_its_checkpoints_and_leaves_nothing(run):
    before = sorted(run.rglob("*"))
    with snapshot(run, smoke_config()) as workdir:
        shutil.rmtree(run / "checkpoints" / "step_00000001")
        names = {f"checkpoints/step_0000000{n}/content" for n in (1, 2)} | {"tokenizer/content"}
        assert contents(workdir) == names and workdir.path != run
        links = run / "tokenizer/content", workdir.path / "tokenizer/content"
        assert links[0].samefile(links[1])
    assert list(run.parent.iterdir()) == [run]
    assert len(before) == len(sorted(run.rglob("*"))) + 2


KILLED = """
import os, signal, sys
from pathlib import Path
from ale_jax.system.snapshot import snapshot
from tests.system.configs import smoke_config
with snapshot(Path(sys.argv[1]), smoke_config()):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.heavy
def test_what_a_killed_evaluation_has_left_is_removed_and_nothing_else(run):
    killed = subprocess.run([sys.executable, "-c", KILLED, str(run)], check=False)
    (left,) = set(run.parent.iterdir()) - {run}
    assert killed.returncode == -signal.SIGKILL and left.name.startswith(".run.")
    others = [shutil.copytree(left, run.parent / name) for name in (".run.mine", "run2")]
    (others[0] / "snapshot").unlink()
    with snapshot(run, smoke_config()) as first, snapshot(run, smoke_config()):
        assert first.path.exists() and not left.exists()
    assert sorted(run.parent.iterdir()) == sorted([run, *others])


def test_a_checkpoint_that_is_removed_meanwhile_is_left_out(run, monkeypatch):
    def link(file, copy):
        if "step_00000001" in file:
            shutil.rmtree(run / "checkpoints" / "step_00000001", ignore_errors=True)
        shutil.copy2(file, copy)

    monkeypatch.setattr(snapshots, "_link", link)
    with snapshot(run, smoke_config()) as workdir:
        assert contents(workdir) == {"checkpoints/step_00000002/content", "tokenizer/content"}
        assert not (workdir.checkpoints / "step_00000001").exists()


def test_a_folder_without_a_run_and_another_config_are_refused_by_the_runs_own_name(run, tmp_path):
    for folder, config in ((tmp_path, smoke_config()), (run, smoke_config(seed=7))):
        with pytest.raises(ValueError, match=f"workdir {folder} holds (no run|a run of another)"):
            with snapshot(folder, config):
                pass
