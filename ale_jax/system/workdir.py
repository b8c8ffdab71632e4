"""The folder of a run. Only one process at a time can claim it, and it is never deleted.

The folder of its lease marks it as one to which runs may write.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from pathlib import Path

from ale_jax.config.run import RunConfig
from ale_jax.files import write_json
from ale_jax.monitor.evaluations import SUMMARY_FILE
from ale_jax.monitor.metrics import METRICS_FILE
from ale_jax.monitor.report import is_reported, write_report
from ale_jax.monitor.run_files import CHECKPOINTS_DIR, CONFIG_FILE
from ale_jax.system.continuation import changes_to, require_config, require_run
from ale_jax.system.lease import LEASE_DIR, Lease, require_free


class RunState(enum.StrEnum):
    """Whether a folder holds no results yet, those of an interrupted run, or of a finished one."""

    NEW = "new"
    UNFINISHED = "unfinished"
    FINISHED = "finished"


@dataclasses.dataclass
class Workdir:
    """A claimed folder. Use it in a `with` block.

    state: the state in which it was found. moved: the new folder of an overwritten run. lease: to
    be checked before something is written. changes: of a continued run's config, in words.
    """

    path: Path
    state: RunState
    moved: Path | None
    lease: Lease
    changes: str = ""

    @classmethod
    def claim(
        cls, path: Path, config: RunConfig, resume: bool = False, overwrite: bool = False
    ) -> Workdir:
        """Makes `path` the folder of this run, and writes its config.json.

        A folder that holds a run of the same config is continued. resume: also one whose config
        differs in RESUMABLE_FIELDS. overwrite: first moves an existing run to a folder beside it.

        Raises:
          ValueError: the folder is in use, cannot be written, holds something else than a run, or
            holds another run.
        """
        path = Path(path).resolve()
        _refuse_both(resume, overwrite)
        try:
            return cls._claim(path, config, resume, overwrite)
        except OSError as error:
            raise ValueError(
                f"workdir {path} cannot be used ({error.strerror}: {error.filename}): "
                "choose another --workdir, or make sure that this one is writable and has space"
            ) from error

    @classmethod
    def open(cls, path: Path, config: RunConfig, lease: Lease | None = None) -> Workdir:
        """Claims the folder of an existing run, to read from it.

        Its config may differ from `config` in RESUMABLE_FIELDS, `mesh` and `hardware`. lease: of
        the folder, if it has been taken already.

        Raises:
          ValueError: there is no run, it is in use, or it has another config.
        """
        path = Path(path).resolve()
        require_config(path)
        lease = lease or Lease.take(path)
        try:
            require_run(path, config)
        except BaseException:
            lease.close()
            raise
        return cls(path, _state(path), None, lease)

    def write_missing_report(self) -> Path | None:
        """Writes the report of a finished run that has none of its end, because the disk was full
        then; its path, or None if it is there."""
        return None if is_reported(self.path) else write_report(self.path)

    @classmethod
    def _claim(cls, path: Path, config: RunConfig, resume: bool, overwrite: bool) -> Workdir:
        lease = _lease(path)
        moved = None
        try:
            if overwrite and _has_results(path):
                moved = _move_aside(path)
                lease.moved_to(moved)
                lease.close()
                lease = _lease(path)
            state, changes = _enter(path, config, resume)
        except BaseException:
            lease.close()
            raise
        return cls(path, state, moved, lease, changes)

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS_DIR

    def close(self) -> None:
        self.lease.close()

    def __enter__(self) -> Workdir:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def require_claimable(
    path: Path, config: RunConfig, resume: bool = False, overwrite: bool = False
) -> tuple[RunState, str]:
    """Raises the ValueError with which `Workdir.claim` would refuse an existing folder now.

    Only looks, and takes no lease. Returns the state in which the folder would be found, and what
    would change in the config of its run, in words.
    """
    path = Path(path).resolve()
    _refuse_both(resume, overwrite)
    if path.exists():
        _require_ours(path)
        require_free(path)
    if overwrite:
        return RunState.NEW, ""
    return _look(path, config, resume)


def _refuse_both(resume: bool, overwrite: bool) -> None:
    if resume and overwrite:
        raise ValueError("--resume and --overwrite exclude each other: give one of them")


def _lease(path: Path) -> Lease:
    path.mkdir(parents=True, exist_ok=True)
    _require_ours(path)
    return Lease.take(path)


def _require_ours(path: Path) -> None:
    names = {each.name for each in path.iterdir()}
    if names and not (LEASE_DIR in names and _is_ours(path, names)):
        raise ValueError(f"workdir {path} is not empty and holds no run: choose a new folder")


def _is_ours(path: Path, names: set[str]) -> bool:
    """Whether a folder with a lease is a run's, and not an evaluation's, which have leases, too. A
    start that was killed may leave nothing else, or a part of a config."""
    others = any(not name.startswith(".") for name in names - {LEASE_DIR})
    return not others or CONFIG_FILE in names or _has_results(path)


def _look(path: Path, config: RunConfig, resume: bool) -> tuple[RunState, str]:
    """Returns the folder's state, and what is to change in the config of its run. ValueError if its
    run cannot go on with `config`."""
    state = _state(path)
    if state is not RunState.NEW:
        return state, changes_to(path, config, resume)
    if resume:
        raise ValueError(f"workdir {path} holds no run to resume: check --workdir")
    return state, ""


def _enter(path: Path, config: RunConfig, resume: bool) -> tuple[RunState, str]:
    """Looks, then writes config.json unless the run has the same."""
    state, changes = _look(path, config, resume)
    if changes:
        # The run has more to do now. If it is killed before its end, it must not count as finished.
        (path / SUMMARY_FILE).unlink(missing_ok=True)
        state = RunState.UNFINISHED
    if changes or state is RunState.NEW:
        write_json(path / CONFIG_FILE, config.to_json())
    return state, changes


def _state(path: Path) -> RunState:
    if (path / SUMMARY_FILE).exists():
        return RunState.FINISHED
    return RunState.UNFINISHED if _has_results(path) else RunState.NEW


def _has_results(path: Path) -> bool:
    """Whether the folder holds any results. A start that failed leaves only a config."""
    metrics, checkpoints = path / METRICS_FILE, path / CHECKPOINTS_DIR
    return (
        (path / SUMMARY_FILE).exists()
        or (metrics.exists() and metrics.stat().st_size > 0)
        or (checkpoints.exists() and any(checkpoints.iterdir()))
    )


def _move_aside(path: Path) -> Path:
    for number in itertools.count(1):
        target = path.with_name(f"{path.name}.old-{number}")
        if not target.exists():
            path.rename(target)
            return target
    raise AssertionError("unreachable: the count has no end")
