"""The newest policy of a run, apart from the run, which may go on meanwhile."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ale_jax.config.run import RunConfig
from ale_jax.monitor.evaluations import EVALUATIONS_FILE
from ale_jax.monitor.run_files import CHECKPOINTS_DIR, CONFIG_FILE
from ale_jax.system.continuation import require_run
from ale_jax.system.lease import Lease, is_over
from ale_jax.system.workdir import Workdir

MARK = "snapshot"  # a file that no run has, so that nothing else is ever removed


@contextlib.contextmanager
def snapshot(path: Path, config: RunConfig) -> Iterator[Workdir]:
    """Yields a folder beside the run's with what its policy consists of, for the block.

    Its files are links to those of the run where the disk has links, so they take no space, and
    stay when the run removes its own. Such folders of processes of this machine that were killed
    are removed first.

    Raises:
      ValueError: there is no run, or it has another config.
    """
    path = path.resolve()
    require_run(path, config)
    _remove_abandoned(path)
    with (
        tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as name,
        contextlib.closing(Lease.take(Path(name))) as lease,
    ):
        folder = Path(name)
        (folder / MARK).touch()
        for file in (CONFIG_FILE, EVALUATIONS_FILE):
            if (path / file).exists():
                shutil.copy2(path / file, folder / file)
        for part in (path / "tokenizer", *sorted((path / CHECKPOINTS_DIR).glob("step_*"))):
            _link_all(part, folder / part.relative_to(path))
        with Workdir.open(folder, config, lease) as workdir:
            yield workdir


def _remove_abandoned(run: Path) -> None:
    for folder in run.parent.glob(f".{glob.escape(run.name)}.*"):
        if (folder / MARK).is_file() and is_over(folder):
            shutil.rmtree(folder, ignore_errors=True)  # as another evaluation may do, too


def _link_all(folder: Path, copy: Path) -> None:
    """Leaves out a folder that is removed, or not complete yet, meanwhile."""
    try:
        shutil.copytree(folder, copy, copy_function=_link)
    except (FileNotFoundError, shutil.Error):
        shutil.rmtree(copy, ignore_errors=True)


def _link(file: str, copy: str) -> None:
    try:
        os.link(file, copy)
    except OSError:  # not all disks have links
        shutil.copy2(file, copy)
