"""Whether the run in a folder can go on, or be read, with a config: how the two may differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ale_jax.config.build import with_record_defaults
from ale_jax.config.fields import MAX_SHOWN, described_changes, differing_fields, flat
from ale_jax.config.run import RunConfig
from ale_jax.files import read_json
from ale_jax.monitor.run_files import CONFIG_FILE

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


def changes_to(path: Path, config: RunConfig, resume: bool) -> str:
    """Returns how `config` differs from that of the run in a folder, in words; "" if it does not.

    resume: whether it may differ in RESUMABLE_FIELDS.

    Raises:
      ValueError: the run cannot go on with this config, or its own cannot be read.
    """
    stored, wanted = flat(_stored(path)), flat(json.loads(json.dumps(config.to_json())))
    if stored == wanted:
        return ""
    move = "choose another folder, or give --overwrite to move it aside"
    _refuse_other_version(path, stored, wanted, move)
    _refuse_other_config(path, stored, wanted, resume)
    return described_changes(stored, wanted, differing_fields(stored, wanted))


def require_run(path: Path, config: RunConfig) -> None:
    """Raises ValueError unless a folder holds a run of this config, as `Workdir.open` takes it."""
    require_config(path)
    stored, wanted = _fixed(_stored(path)), _fixed(json.loads(json.dumps(config.to_json())))
    _refuse_other_version(path, stored, wanted, "install the one that wrote it")
    if differing := differing_fields(stored, wanted):
        raise ValueError(
            f"workdir {path} holds a run of another config "
            f"({described_changes(stored, wanted, differing)}): give that config"
        )


def require_config(path: Path) -> None:
    """Raises ValueError unless a folder holds the config of a run."""
    if not (path / CONFIG_FILE).is_file():
        raise ValueError(f"workdir {path} holds no run: check --workdir")


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
