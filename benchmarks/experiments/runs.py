"""Makes runs with `ale_jax.launch`, one after another: a warm start per seed, and arms from it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

from ale_jax.config.fields import described_changes, differing_fields
from ale_jax.monitor.evaluations import SUMMARY_FILE
from benchmarks.experiments.catalogue import FOLDER, Arm, Experiment
from benchmarks.experiments.settings import settings, settings_of_run
from benchmarks.launching import launch

# Overrides that make a run end within seconds; it learns nothing.
QUICK: Mapping[str, object] = {
    "warm_start.transcripts_per_family": 8,
    "warm_start.max_steps": 2,
    "warm_start.probe_tasks": 6,
    "rl.steps": 2,
    "rl.groups_per_step": 2,
    "eval.tasks": 6,
}
NO_WARM_START: Mapping[str, object] = {"warm_start.max_steps": 0}  # an arm's weights have had it


@dataclasses.dataclass(frozen=True)
class Runs:
    """folder: of all runs. quick: whether to use QUICK's overrides, in a separate folder."""

    folder: Path
    quick: bool

    def workdir(self, experiment: Experiment, arm: Arm, seed: int) -> Path:
        return self._root / experiment.name / f"{arm.name}_{seed}"

    @property
    def _root(self) -> Path:
        return self.folder / "quick" if self.quick else self.folder

    def run(self, experiment: Experiment, arm: Arm, seed: int) -> Path:
        """Makes a run, unless it is finished, and returns its folder.

        Raises:
          subprocess.CalledProcessError: the run did not finish.
          ValueError: there is a finished run with another config.
        """
        workdir = self.workdir(experiment, arm, seed)
        if not (workdir / SUMMARY_FILE).exists():
            weights = self._warm_weights(experiment.start, seed)
            rows = json.loads((weights / "config.json").read_text())["vocab_size"]
            start = {"weights": weights, "tokenizer.vocab_size": rows}
            config = f"{FOLDER}/{experiment.config}.py:{arm.algorithm}"
            self._launch(config, workdir, seed, self._changes(arm) | start)
        elif changed := self._changed(experiment, arm, workdir):
            raise ValueError(f"{workdir} has another config ({changed}): move it away")
        return workdir

    def made(self, experiment: Experiment, arm: Arm) -> list[Path]:
        """The folders of all finished runs of exactly this arm."""
        folders = self.workdir(experiment, arm, 0).parent.glob(f"{arm.name}_[0-9]*")
        return [
            folder
            for folder in sorted(folders)
            # The name of one arm may begin with that of another.
            if folder.name.removeprefix(f"{arm.name}_").isdigit()
            and (folder / SUMMARY_FILE).exists()
            and not self._changed(experiment, arm, folder)
        ]

    def _changed(self, experiment: Experiment, arm: Arm, workdir: Path) -> str:
        """Describes how the run's config differs from the arm's; empty if it does not."""
        stored, wanted = settings_of_run(workdir), settings(experiment, arm) | self._changes(arm)
        return described_changes(stored, wanted, differing_fields(stored, wanted))

    def _changes(self, arm: Arm) -> dict[str, object]:
        return dict(arm.overrides) | self._shrunk() | dict(NO_WARM_START)

    def _warm_weights(self, config: str, seed: int) -> Path:
        """The folder with weights and tokenizer after the warm start, which runs once per seed."""
        workdir = self._root / "warm_start" / f"{config}_{seed}"
        weights = workdir.with_name(f"{workdir.name}_weights")
        if not weights.exists():
            file, changes = f"{FOLDER}/{config}.py", self._shrunk() | {"rl.steps": 0}
            self._launch(file, workdir, seed, changes)
            self._launch(file, workdir, seed, changes, "export", f"--out={weights}")
        return weights

    def _shrunk(self) -> dict[str, object]:
        return dict(QUICK) if self.quick else {}

    def _launch(
        self, config: str, workdir: Path, seed: int, changes: Mapping[str, object], *words: str
    ) -> None:
        # A shared cache, so that programs are compiled once for all arms of the same shape.
        common = {"seed": seed, "compilation_cache": self.folder / "compiled"}
        launch(config, workdir, common | changes, *words)
