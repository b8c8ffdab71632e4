"""The folder of a run. Only one process at a time can claim it, and it is never deleted.

The folder of its lease marks it as one to which runs may write.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import json
from pathlib import Path
from typing import Any

from ale_jax.config.build import with_record_defaults
from ale_jax.config.fields import MAX_SHOWN, described_changes, differing_fields, flat
from ale_jax.config.run import RunConfig
from ale_jax.files import read_json, write_json
from ale_jax.monitor.evaluations import SUMMARY_FILE
from ale_jax.monitor.metrics import METRICS_FILE
from ale_jax.monitor.report import is_reported, write_report
from ale_jax.monitor.run_files import CONFIG_FILE
from ale_jax.system.lease import LEASE_DIR, Lease

CHECKPOINTS_DIR = "checkpoints"

# Fields that may change when a run is resumed: how long it is, how fast it learns, how it is
# monitored, and where episodes are played. Only rates change the numbers of a step that both runs
# make, and rl.steps, of which the schedules of rates are shares, does where there is a schedule.
_RATES = ("learning_rate", "muon_learning_rate", "warmup_ratio", "decay_ratio")
RESUMABLE_FIELDS = (
    *(f"{section}.{name}" for section in ("rl_optimizer", "critics.optimizer") for name in _RATES),
    "name",
    "compilation_cache",
    "timeline",
    "rl.steps",
    "eval.tasks",
    "eval.held_out_tasks",
    "eval.every",
    "checkpoint.every",
    "checkpoint.keep",
    "checkpoint.grace_seconds",
    "deadlines.placement_seconds",
    "deadlines.turn_seconds",
    "deadlines.episode_seconds",
    "deadlines.outage_seconds",
    "deadlines.watchdog_seconds",
    "rollout.runtime",
    "rollout.devices_per_engine",
    "rollout.engine_devices",
    "rollout.lent_engines",
    "rollout.actors",
    "rollout.episodes_per_actor",
    "rollout.retries",
    "rollout.uplink.networks",
    "rollout.uplink.proxy",
    "rollout.datasets",
    "serve.max_sequences",
    "serve.prefill_tokens",
    "serve.compute_dtype",
    "serve.finish_seconds",
    "rollout.placement.cpus",
    "rollout.placement.memory_mb",
    "rollout.placement.resources",
    "rollout.placement.labels",
)


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
        if resume and overwrite:
            raise ValueError("--resume and --overwrite exclude each other: give one of them")
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
        _require_config(path)
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


def require_run(path: Path, config: RunConfig) -> None:
    """Raises ValueError unless a folder holds a run of this config, as `Workdir.open` takes it."""
    _require_config(path)
    stored, wanted = _fixed(_stored(path)), _fixed(json.loads(json.dumps(config.to_json())))
    _refuse_other_version(path, stored, wanted, "install the one that wrote it")
    if differing := differing_fields(stored, wanted):
        raise ValueError(
            f"workdir {path} holds a run of another config "
            f"({described_changes(stored, wanted, differing)}): give that config"
        )


def _require_config(path: Path) -> None:
    if not (path / CONFIG_FILE).is_file():
        raise ValueError(f"workdir {path} holds no run: check --workdir")


def _lease(path: Path) -> Lease:
    path.mkdir(parents=True, exist_ok=True)
    names = {each.name for each in path.iterdir()}
    if names and not (LEASE_DIR in names and _is_ours(path, names)):
        raise ValueError(f"workdir {path} is not empty and holds no run: choose a new folder")
    return Lease.take(path)


def _is_ours(path: Path, names: set[str]) -> bool:
    """Whether a folder with a lease is a run's, and not an evaluation's, which have leases, too. A
    start that was killed may leave nothing else, or a part of a config."""
    others = any(not name.startswith(".") for name in names - {LEASE_DIR})
    return not others or CONFIG_FILE in names or _has_results(path)


def _enter(path: Path, config: RunConfig, resume: bool) -> tuple[RunState, str]:
    """Compares the folder's config with `config`, then writes config.json. Returns the folder's
    state, and what has changed in the config of its run."""
    state = _state(path)
    if state is RunState.NEW:
        if resume:
            raise ValueError(f"workdir {path} holds no run to resume: check --workdir")
        write_json(path / CONFIG_FILE, config.to_json())
        return state, ""
    stored, wanted = _stored(path), json.loads(json.dumps(config.to_json()))
    if stored == wanted:
        return state, ""
    before, after = flat(stored), flat(wanted)
    move = "choose another folder, or give --overwrite to move it aside"
    _refuse_other_version(path, before, after, move)
    _refuse_other_config(path, before, after, resume)
    # The run has more to do now. If it is killed before its end, it must not count as finished.
    (path / SUMMARY_FILE).unlink(missing_ok=True)
    write_json(path / CONFIG_FILE, wanted)
    return RunState.UNFINISHED, described_changes(before, after, differing_fields(before, after))


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


def _stored(path: Path) -> dict[str, Any]:
    stored = read_json(path / CONFIG_FILE)
    if not isinstance(stored, dict):
        raise ValueError(
            f"{path / CONFIG_FILE} holds no config: give --overwrite to move the run aside"
        )
    return with_record_defaults(stored)


def _refuse_other_version(
    path: Path, stored: dict[str, object], wanted: dict[str, object], remedy: str
) -> None:
    """ValueError if the stored config has other fields than configs of this version."""
    renamed = sorted(stored.keys() ^ wanted.keys())
    if renamed:
        names = ", ".join(renamed[:MAX_SHOWN]) + (", ..." if len(renamed) > MAX_SHOWN else "")
        raise ValueError(
            f"workdir {path} holds a run of another version of ALE-JAX, whose config fields differ "
            f"({names}): {remedy}"
        )


def _refuse_other_config(
    path: Path, stored: dict[str, object], wanted: dict[str, object], resume: bool
) -> None:
    """ValueError unless the fields in which the configs differ may be changed."""
    differing = differing_fields(stored, wanted)
    fixed = [name for name in differing if name not in RESUMABLE_FIELDS]
    if resume and not fixed:
        _refuse_fewer_steps(path, stored.get("rl.steps"), wanted["rl.steps"])
        return
    changes = described_changes(stored, wanted, fixed if resume else differing)
    how = "" if fixed else "--resume to continue with these changes, "
    raise ValueError(
        f"workdir {path} holds a run of another config ({changes}): "
        f"choose another folder, or give {how}--overwrite to move it aside"
    )


def _fixed(config: dict[str, Any]) -> dict[str, object]:
    """The fields that affect what is in the checkpoints."""
    free = ("mesh.", "hardware.")
    return {
        name: value
        for name, value in flat(config).items()
        if name not in RESUMABLE_FIELDS and not name.startswith(free)
    }


def _refuse_fewer_steps(path: Path, stored: object, wanted: object) -> None:
    # The last checkpoint may already be beyond `wanted` steps, and would then be reported as the
    # result of a run of `wanted` steps.
    if isinstance(stored, int) and isinstance(wanted, int) and wanted < stored:
        raise ValueError(
            f"rl.steps {wanted} is less than the {stored} of the run in {path}: "
            "a run can be made longer, not shorter"
        )


def _move_aside(path: Path) -> Path:
    for number in itertools.count(1):
        target = path.with_name(f"{path.name}.old-{number}")
        if not target.exists():
            path.rename(target)
            return target
    raise AssertionError("unreachable: the count has no end")
