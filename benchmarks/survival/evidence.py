"""What a run has on disk, and whether any of it was lost."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from ale_jax.learn.checkpoint import HOST_FILE, PREFIX
from ale_jax.learn.manifest import MANIFEST_FILE
from ale_jax.monitor.metrics import METRICS_FILE
from ale_jax.monitor.run_files import CHECKPOINTS_DIR

KEEP = 2  # checkpoint.keep of all runs here
# And all that begins with TIME_PREFIX.
TIMES = ("seconds", "tokens_per_second", "train_tokens_per_second", "mfu")
TIME_PREFIX = "time/"


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of the reinforcement phase."""
    return [line for line in map(json.loads, _lines(folder)) if line["phase"] == "rl"]


def untimed_metrics(folder: Path) -> list[dict[str, Any]]:
    """The same without what a clock decides."""
    return [
        {k: v for k, v in line.items() if k not in TIMES and not k.startswith(TIME_PREFIX)}
        for line in metrics(folder)
    ]


def metrics_lines(folder: Path) -> int:
    """Their number, in all phases."""
    return len(_lines(folder))


def newest_step(folder: Path) -> int:
    """0 before the first."""
    return _newest(folder).get("step", 0)


def dropped_episodes(folder: Path) -> int:
    """Those of groups without any verdict, until the newest step."""
    return _newest(folder).get("dropped_failed", 0)


def checkpoints(folder: Path) -> dict[int, Path]:
    """The complete ones, by step, ascending. They may still be damaged."""
    found = (folder / CHECKPOINTS_DIR).glob(f"{PREFIX}*[0-9]/{MANIFEST_FILE}")
    return dict(sorted((int(p.parent.name.removeprefix(PREFIX)), p.parent) for p in found))


def newest_checkpoint(folder: Path) -> int:
    return max(checkpoints(folder), default=-1)


def host_state(folder: Path) -> dict[str, Any]:
    """What the newest checkpoint says of the task stream."""
    return json.loads((checkpoints(folder)[newest_checkpoint(folder)] / HOST_FILE).read_text())


def damage(checkpoint: Path) -> Path:
    """Cuts the last byte off its largest file, which is returned."""
    largest = max((p for p in checkpoint.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1])
    return largest


@dataclasses.dataclass(frozen=True)
class Goods:
    """What a run had that was good: its intact checkpoints, file by file, and those lines of its
    metrics that it need not make anew."""

    folder: Path
    intact: dict[int, dict[str, str]]
    lines: tuple[bytes, ...]

    @classmethod
    def of(cls, folder: Path, damaged: tuple[int, ...] = (), stopped: bool = False) -> Goods:
        """damaged: steps of checkpoints that are not good. stopped: the run will go on from its
        newest intact checkpoint, so later lines will be made anew."""
        found = {n: _digests(p) for n, p in checkpoints(folder).items() if n not in damaged}
        lines = _lines(folder)
        if stopped:
            known = max(found, default=None)
            lines = [each for each in lines if known is None or _is_before(each, known)]
        return cls(folder, found, tuple(lines))

    def lost(self) -> list[str]:
        """What of it is not there any more, as it was."""
        now = checkpoints(self.folder)
        faults = [
            f"the checkpoint of step {step} is gone or changed"
            for step, files in self.intact.items()
            # The oldest is removed when there are enough newer ones.
            if sum(newer > step for newer in now) < KEEP
            and (step not in now or _digests(now[step]) != files)
        ]
        if tuple(_lines(self.folder)[: len(self.lines)]) != self.lines:
            faults.append(f"{METRICS_FILE} lost lines, or they were changed")
        return faults


def _newest(folder: Path) -> dict[str, Any]:
    """The last line of the reinforcement phase; {} before the first."""
    for line in reversed(_lines(folder)):
        if (content := json.loads(line))["phase"] == "rl":
            return content
    return {}


def _is_before(line: bytes, step: int) -> bool:
    content = json.loads(line)
    return content["phase"] != "rl" or content["step"] <= step


def _lines(folder: Path) -> list[bytes]:
    """The complete lines."""
    path = folder / METRICS_FILE
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def _digests(checkpoint: Path) -> dict[str, str]:
    """While the run removes it, files may vanish."""
    digests = {}
    for path in sorted(p for p in checkpoint.rglob("*") if p.is_file()):
        try:
            digests[str(path.relative_to(checkpoint))] = hashlib.sha256(
                path.read_bytes()
            ).hexdigest()
        except FileNotFoundError:
            continue
    return digests
