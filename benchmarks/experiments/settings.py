"""The resolved configs of an experiment's arms: what all of them share, and in what they differ."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ale_jax.config.fields import flat
from ale_jax.files import read_json
from ale_jax.monitor.run_files import CONFIG_FILE
from benchmarks.experiments.catalogue import FOLDER, Arm, Experiment

Settings = dict[str, Any]  # by the dotted names of fields, values as JSON has them

# Fields that differ between the runs of an arm: the seed, and the initial weights and tokenizer.
OF_A_RUN = frozenset(("seed", "weights", "compilation_cache", "tokenizer.vocab_size"))


def settings(experiment: Experiment, arm: Arm) -> Settings:
    """All fields of the arm's config except OF_A_RUN."""
    module = importlib.import_module(f"{FOLDER.replace('/', '.')}.{experiment.config}")
    values = flat(module.get_config(arm.algorithm).to_dict())
    assert arm.overrides.keys() <= values.keys(), arm
    return _of_an_arm(values | dict(arm.overrides))


def settings_of_run(workdir: Path) -> Settings:
    """The same fields of the run in `workdir`."""
    return _of_an_arm(flat(read_json(workdir / CONFIG_FILE)))


def _of_an_arm(values: Mapping[str, Any]) -> Settings:
    kept = {name: value for name, value in values.items() if name not in OF_A_RUN}
    return json.loads(json.dumps(kept))  # tuples as lists


def shared(arms: Iterable[Settings]) -> Settings:
    """The fields that are the same in all of them."""
    first, *others = arms
    return {
        name: value
        for name, value in first.items()
        if all(name in other and other[name] == value for other in others)
    }
