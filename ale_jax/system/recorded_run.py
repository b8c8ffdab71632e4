"""Opens the folder of a run for analysis: trajectories token by token, and the newest weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.engine import PLAIN, Sampling
from ale_jax.config.run import RunConfig
from ale_jax.data.packing import Sample, pack_all
from ale_jax.model.lora import merged
from ale_jax.model.params import Params
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.model.weights.shape import policy_shape
from ale_jax.monitor.run_files import CONFIG_FILE, read_run
from ale_jax.monitor.trajectories import (
    MAX_TOKENS,
    TRAJECTORIES_FILE,
    ChunkTokens,
    TrajectorySample,
    TurnSample,
)
from ale_jax.records import Batch, Turn
from ale_jax.system.checks import stored_config
from ale_jax.system.states import Newest, newest_state
from ale_jax.system.workdir import Workdir


def recorded_config(path: Path) -> RunConfig | None:
    """Returns the config of the run in a folder; None if it holds none. ValueError if its config is
    another program's, such as a model's, or of another version."""
    file = path / CONFIG_FILE
    try:
        return stored_config(file) if file.is_file() else None
    except ValueError as error:
        raise ValueError(
            f"{file} is no config of this version ({error}): name one by --config, or install the "
            "version that wrote it"
        ) from error


@dataclasses.dataclass(frozen=True)
class RecordedRun:
    """A run that was read from its folder.

    steps: the metrics of each RL step. trajectories: those that are recorded token by token.
    """

    path: Path
    config: RunConfig
    steps: tuple[dict[str, Any], ...]
    trajectories: tuple[TrajectorySample, ...]

    @classmethod
    def open(cls, path: Path | str) -> RecordedRun:
        """Opens the run in `path`. ValueError, with the file's name, if `path` holds no run, or one
        without a trajectory that is recorded token by token."""
        path = Path(path)
        files = read_run(path)
        known = tuple(t for t in files.trajectories if t.turns and all(x.each for x in t.turns))
        if not known:
            why = "; ".join(files.notices) or "none is recorded token by token"
            raise ValueError(
                f"{path / TRAJECTORIES_FILE} holds no trajectory to study ({why}): name the "
                "folder of a run that has made RL steps"
            )
        config = stored_config(path / CONFIG_FILE)
        return cls(path, config, tuple(files.phase("rl")), known)

    @cached_property
    def newest(self) -> Newest:
        """What the newest checkpoint holds. ValueError if there is none, or the run is active."""
        with Workdir.open(self.path, self.config) as workdir:
            return newest_state(self.config, workdir.path)

    @cached_property
    def params(self) -> Params:
        """The newest weights, with adapters merged."""
        return merged(self.newest.state.params)

    @property
    def tokenizer(self) -> ChatTokenizer:
        return self.newest.tokenizer

    @property
    def policy(self) -> PolicyShape:
        return policy_shape(self.config, self.tokenizer.vocab_size)

    @property
    def groups(self) -> list[list[TrajectorySample]]:
        """The trajectories, grouped into attempts at one task in one step, in step order."""
        groups: dict[tuple, list[TrajectorySample]] = {}
        for each in self.trajectories:
            groups.setdefault((each.step, each.family, each.item), []).append(each)
        return list(groups.values())

    def packed(self, trajectories: Sequence[TrajectorySample]) -> list[Batch]:
        """Packs the trajectories of one group into microbatches, with their recorded credit."""
        sampling = self.config.train_sampling
        samples = [sample_of(t, member, sampling) for member, t in enumerate(trajectories)]
        return pack_all(samples, self.config.learn)


def sample_of(trajectory: TrajectorySample, member: int = 0, sampling: Sampling = PLAIN) -> Sample:
    """Returns the trajectory as it was trained on. A chunk's credit is the mean over its tokens.
    sampling: of the run. Sampling masks are not recorded: a reply that was held to a schema or cut
    by top_k, top_p or min_p is here as if it had been free."""
    sampled = trajectory.turns[trajectory.num_prefix_turns :]
    return Sample(
        turns=tuple(map(_turn, trajectory.turns)),
        advantage_C=np.array([np.mean(_tokens(turn).advantage) for turn in sampled], np.float32),
        num_prefix_turns=trajectory.num_prefix_turns,
        member=member,
        sampling=sampling,
    )


def _turn(turn: TurnSample) -> Turn:
    each = _tokens(turn)
    return Turn(
        prompt_ids=np.array(each.prompt_ids, np.int32),
        action_ids=np.array(each.action_ids, np.int32),
        logp_mu=np.array(each.logp_mu, np.float32),
        logp_old=np.array(each.logp_old, np.float32),
        version=np.array(each.version, np.int32),
        action_text=turn.action,
        prompt_text=turn.prompt,
        reward=turn.reward,
    )


def _tokens(turn: TurnSample) -> ChunkTokens:
    """Returns the recorded tokens of a turn. ValueError if the trajectory was too long for that."""
    if turn.each is None:
        raise ValueError(
            f"the tokens of a trajectory of more than {MAX_TOKENS} are not recorded: choose one "
            "whose turns have `each`"
        )
    return turn.each
