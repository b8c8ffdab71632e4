"""The state that a run starts with: its newest checkpoint, or the result of a warm start."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

import jax
import optax
from jax.sharding import Mesh

from ale_jax.data.experts import Expert
from ale_jax.learn.checkpoint import Checkpoints
from ale_jax.learn.critics import Critics
from ale_jax.learn.state import TrainState, WholeState, begin, make_optimizer
from ale_jax.learn.step import ModelSpec
from ale_jax.model.shape import PolicyShape
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.monitor.evaluations import EVALUATIONS_FILE, WARM_START, recorded_names
from ale_jax.monitor.metrics import METRICS_FILE, read_metrics
from ale_jax.records import Task
from ale_jax.sandbox.api import Runtime
from ale_jax.system.config import RunConfig
from ale_jax.system.demonstrations import (
    collect_demonstrations,
    make_tokenizer,
    mixed_samples,
    oracle_experts,
    tokenize,
)
from ale_jax.system.run_logger import RunLogger
from ale_jax.system.states import abstract_whole, first_state
from ale_jax.system.stopping import StopSignals
from ale_jax.system.tasks import Cursor, train_task
from ale_jax.system.warm_start import (
    full_batches,
    make_probe,
    make_supervised_step,
    warm_start,
)

CRITICS_STREAM = 1  # of the run's key


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is known of a run before it has a state. runtime: None if no task needs a sandbox."""

    config: RunConfig
    path: Path  # the run's folder
    mesh: Mesh
    runtime: Runtime | None

    @property
    def tokenizer_folder(self) -> Path:
        return self.path / "tokenizer"

    def policy(self, tokenizer: ChatTokenizer) -> PolicyShape:
        return self.config.policy_shape(tokenizer.vocab_size)

    def model(self, tokenizer: ChatTokenizer) -> ModelSpec:
        config, learn = self.config, self.config.learn
        policy = self.policy(tokenizer)
        return ModelSpec(policy, self.mesh, learn.compute, config.lora, learn.balance_weight)

    def optimizer(self, tokenizer: ChatTokenizer) -> optax.GradientTransformation:
        config = self.config
        return make_optimizer(config.rl_optimizer, self.policy(tokenizer), config.lora)

    def train_task(self, number: int) -> Task:
        worlds, seed = self.config.worlds, self.config.seed
        return train_task(number, worlds.train_families, seed, worlds.tasks_per_family)


@dataclasses.dataclass(frozen=True)
class Start:
    """Where reinforcement learning starts.

    critics: with their state; None if the algorithm has none.
    oracles: the experts of all training tasks, if they have been played already.
    """

    tokenizer: ChatTokenizer
    state: TrainState
    critics: Critics | None
    cursor: Cursor
    oracles: Sequence[Expert] | None = None

    def whole(self, state: TrainState) -> WholeState:
        """`state` and the critics' state, as a checkpoint stores them."""
        return WholeState(state, self.critics.state if self.critics else ())


def restore(setting: Setting, checkpoints: Checkpoints) -> Start | None:
    """Restores the newest checkpoint that is intact; None if the run has not saved any yet.

    Raises:
      ValueError: all checkpoints are damaged or missing, or the tokenizer or the warm start's
        evaluation is missing from the run's folder.
      OSError: a checkpoint cannot be read.
    """
    if not checkpoints.any():
        _require_no_steps(setting.path)
        return None
    folder = setting.tokenizer_folder
    if not (folder / "tokenizer.json").exists():
        raise ValueError(
            f"{folder} is missing, and the checkpoints beside it cannot be used without this "
            "tokenizer: restore it, or give --overwrite to start a new run"
        )
    tokenizer = ChatTokenizer.load(folder)
    target = abstract_whole(setting.config, setting.policy(tokenizer), setting.mesh)
    checkpoints.require_room(target)
    found = checkpoints.restore_latest(target)
    assert found is not None, "there is a complete checkpoint"
    step, state, host = found
    if step and WARM_START not in recorded_names(setting.path):
        raise ValueError(
            f"{setting.path / EVALUATIONS_FILE} does not hold the evaluation of the warm start, "
            "which cannot be repeated: restore it, or give --overwrite to start a new run"
        )
    critics = None
    if state.critics:
        hp, gamma = setting.config.critics, setting.config.algo.gamma
        critics = Critics(hp, setting.model(tokenizer), state.critics, gamma)
    cursor = Cursor(**host | {"groups": tuple(host["groups"])})
    assert cursor.step == step, (cursor.step, step)
    return Start(tokenizer, state.policy, critics, cursor)


def _require_no_steps(path: Path) -> None:
    """ValueError if the run has made steps, so that it had checkpoints once."""
    metrics = path / METRICS_FILE
    if metrics.exists() and any(line["phase"] == "rl" for line in read_metrics(metrics).records):
        raise ValueError(
            f"{path} holds the metrics of finished steps, but no checkpoint; nothing was changed: "
            "bring the folder checkpoints/ back, or give --overwrite to start a new run"
        )


def begin_anew(
    setting: Setting, checkpoints: Checkpoints, logger: RunLogger, stop: StopSignals
) -> Start:
    """Collects demonstrations, trains a tokenizer on them, and trains the policy to imitate them.
    ValueError if the disk has no room for the checkpoints to come.

    Nothing is demonstrated if the warm start has no steps and the tokenizer is given: by its path,
    or by `weights`.
    """
    config, warm = setting.config, setting.config.warm_start
    source = config.tokenizer.path or config.weights
    domains, probe = [], []
    if warm.max_steps or not source:
        domains, probe = collect_demonstrations(config, setting.runtime, logger.progress, stop)
    texts, size = itertools.chain(*domains), config.tokenizer.vocab_size
    tokenizer = make_tokenizer(source, size, texts, setting.tokenizer_folder)
    policy = setting.policy(tokenizer)
    tokenizer.check_fits(policy.vocab_size)
    checkpoints.require_room(abstract_whole(config, policy, setting.mesh))
    oracles = None
    if config.resampling.wants_oracles:
        # Before training, so that an oracle that is too long for the context is refused early.
        oracles = play_oracles(setting, tokenizer, logger)
    optimizer = setting.optimizer(tokenizer)
    if warm.max_steps:
        warm_optimizer = make_optimizer(config.warm_start_optimizer, policy, config.lora)
        logger.progress.phase("warm start", warm.max_steps, target=warm.target_success)
        model, shape = setting.model(tokenizer), config.learn.shape
        trained = warm_start(
            first_state(config, policy, warm_optimizer, setting.mesh),
            make_supervised_step(model, warm_optimizer),
            stop.checked(full_batches(mixed_samples(config, domains, tokenizer), shape)),
            make_probe([tokenize(each, tokenizer) for each in probe], model, shape),
            warm,
            logger.warm_start_step,
            config.learn.max_skipped_updates,
        )
        state = begin(trained.params, optimizer, setting.mesh)
    else:
        state = first_state(config, policy, optimizer, setting.mesh)
    return Start(tokenizer, state, _new_critics(setting, tokenizer, state), Cursor(), oracles)


def play_oracles(setting: Setting, tokenizer: ChatTokenizer, logger: RunLogger) -> Sequence[Expert]:
    """Plays the oracle on every training task."""
    worlds = setting.config.worlds
    count = worlds.tasks_per_family * len(worlds.train_families)
    tasks = list(map(setting.train_task, range(count)))
    logger.progress.phase("oracle experts", len(tasks), unit="episodes")
    return oracle_experts(setting.config, tasks, setting.runtime, tokenizer, logger.progress.update)


def _new_critics(setting: Setting, tokenizer: ChatTokenizer, state: TrainState) -> Critics | None:
    hp, gamma = setting.config.critics, setting.config.algo.gamma
    if not hp.count:
        return None
    key = jax.random.fold_in(jax.random.key(setting.config.seed), CRITICS_STREAM)
    return Critics.make(hp, setting.model(tokenizer), state.params, gamma, key)
