"""A run as its folder tells it, opened to be studied: trajectories token by token, and weights."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from pathlib import Path
from typing import Any

from ale_jax.model.lora import merged
from ale_jax.model.params import Params
from ale_jax.model.shape import PolicyShape
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.monitor.run_files import CONFIG_FILE, read_run
from ale_jax.monitor.trajectories import TRAJECTORIES_FILE, TrajectorySample
from ale_jax.system.build_config import stored_config
from ale_jax.system.config import RunConfig
from ale_jax.system.newest_state import newest_state


@dataclasses.dataclass(frozen=True)
class RecordedRun:
    """steps: the metrics of each RL step. trajectories: those that are known token by token."""

    path: Path
    config: RunConfig
    steps: tuple[dict[str, Any], ...]
    trajectories: tuple[TrajectorySample, ...]

    @classmethod
    def open(cls, path: Path | str) -> RecordedRun:
        """Raises ValueError, with the file's name, if it is no run or has recorded nothing."""
        path = Path(path)
        files = read_run(path)
        known = tuple(t for t in files.trajectories if t.turns and all(x.each for x in t.turns))
        if not known:
            why = "; ".join(files.notices) or "none is known token by token"
            raise ValueError(
                f"{path / TRAJECTORIES_FILE} holds no trajectory to study ({why}): name the "
                "folder of a run that has made RL steps"
            )
        config = stored_config(path / CONFIG_FILE)
        return cls(path, config, tuple(files.phase("rl")), known)

    @cached_property
    def _newest(self) -> tuple[int, Params, ChatTokenizer]:
        step, state, tokenizer = newest_state(self.config, self.path)
        return step, merged(state.params), tokenizer

    @property
    def params(self) -> Params:
        """The newest weights, adapters merged."""
        return self._newest[1]

    @property
    def tokenizer(self) -> ChatTokenizer:
        return self._newest[2]

    @property
    def policy(self) -> PolicyShape:
        return self.config.policy_shape(self.tokenizer.vocab_size)

    @property
    def groups(self) -> list[list[TrajectorySample]]:
        """Attempts at one task in one step, in the order of the steps."""
        groups: dict[tuple, list[TrajectorySample]] = {}
        for each in self.trajectories:
            groups.setdefault((each.step, each.family, each.seed), []).append(each)
        return list(groups.values())
