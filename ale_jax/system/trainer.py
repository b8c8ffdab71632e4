"""The training state of a run and everything that changes it, on the devices of all its processes.

Each process has a Trainer. Its commands are called by the first process and executed by all of
them. What they need besides batches and scalars (the weights of a version, moments, critics) stays
on the devices, so that nothing but rows is sent.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.run import RunConfig
from ale_jax.data.staleness import StalenessGate
from ale_jax.engine.engine import Engine
from ale_jax.engine.engines import Engines
from ale_jax.learn.attention_credit import make_factors
from ale_jax.learn.checkpoint import OrbaxFiles
from ale_jax.learn.critics import Critics
from ale_jax.learn.learner import Learner, LearnerOptions
from ale_jax.learn.manifest import Digests
from ale_jax.learn.old_policies import WeightHistory
from ale_jax.learn.reference import REFERENCE, Reference, ScoreBatches
from ale_jax.learn.rows import own_rows
from ale_jax.learn.schedule import begin_decay
from ale_jax.learn.scores import Scores, make_logp, make_score
from ale_jax.learn.speed import speed
from ale_jax.learn.state import TrainState, WholeState, begin, last_rate, make_optimizer
from ale_jax.learn.step import Metrics, ModelSpec, TokenUpdate, make_loss, make_train_step
from ale_jax.learn.stored import digests_of, restored, stored
from ale_jax.model.arithmetic import kinds_of, peak_flops
from ale_jax.model.lora import trained, with_trained, without_adapters
from ale_jax.model.params import Params
from ale_jax.model.replicas import SamplingCopy, engine_meshes
from ale_jax.records import Batch
from ale_jax.system.borrowing import BorrowedStep
from ale_jax.system.hosts.commands import Alone, Processes, command
from ale_jax.system.lending import lending_of
from ale_jax.system.preferences import make_preference_step
from ale_jax.system.states import abstract_whole, base_weights, first_state
from ale_jax.system.teacher import open_teacher
from ale_jax.system.warm_start import make_nll, make_probability, make_supervised_step

STATE = "state"
CRITICS_STREAM, ATTENTION_CREDIT_STREAM = 1, 2  # of the run's key


class Trainer:
    """Holds the training state of one process, and changes it by commands. state: of the policy;
    None before the first command that makes one. updates: how many commands have changed it or a
    critic."""

    def __init__(
        self,
        config: RunConfig,
        policy: PolicyShape,
        mesh: Mesh,
        processes: Processes = Alone(),  # noqa: B008 (it has no state)
    ):
        self.config, self.policy, self.mesh, self.processes = config, policy, mesh, processes
        learn, algo, self.shape = config.learn, config.algo, config.learn
        self.model = ModelSpec(policy, mesh, learn, config.lora, learn.balance_weight)
        self.state: TrainState | None = None
        self.updates = 0
        self.critics: Critics | None = None
        optimizer = self._optimizer = make_optimizer(
            config.rl_optimizer, policy, config.lora, config.policy_updates
        )
        loss = make_loss(algo, self.shape.chunks_per_pack)
        self._step = make_train_step(self.model, optimizer, loss)
        self._token_updates: list[TokenUpdate] = []
        self._lending, self._borrows = lending_of(config), False
        self._logp = make_logp(policy, mesh, learn)
        gate = StalenessGate(config.rl.alpha, config.rl.groups_per_step)
        self._history = WeightHistory(gate.max_age if algo.old_logp == "generating" else 0)
        self._reference: Reference | None = None
        rollout, stored_as = config.rollout, config.engine.weights
        of_engines = rollout.devices_per_engine, rollout.engine_devices
        self._engine_meshes = engine_meshes(mesh, *of_engines)
        self._sampling_copy = SamplingCopy(policy, learn, mesh, stored_as, self._engine_meshes)
        if self._lending:
            lent = self._engine_meshes[: self._lending.count]
            self._borrowed_step = BorrowedStep(config, self.model, lent, optimizer, loss)
        self._published: tuple[list[Params], int] | None = None
        self.engines: Engines | None = None

    def make_learner(self, reference: ScoreBatches | None = None) -> Learner:
        """Makes what decides, in the first process, on the updates that this trainer makes.
        reference: as of `Learner`."""
        config = self.config
        amplified = config.attention_credit.credit != "none"
        options = LearnerOptions(config.algo, config.critics, amplified, config.learn)
        return Learner(options, self, reference)

    @property
    def warming_up(self) -> bool:
        """Whether only the critics learn."""
        return self.critics is not None and self.critics.warming_up

    @property
    def learning_rate(self) -> float:
        """The rate of the policy's last update (`last_rate`)."""
        return last_rate(self.config.rl_optimizer, self.config.policy_updates, self.begun)

    def speed(self, batches: Sequence[Batch], seconds: float) -> dict[str, float]:
        """Returns figures of updates that computed these batches in so many seconds."""
        peak = peak_flops(kinds_of(self.mesh))
        return speed(batches, seconds, self.policy, self.config.lora, peak)

    @property
    def begun(self) -> TrainState:
        """The policy's state, which a command has made."""
        assert self.state is not None, "call begin_warm_start, begin or read first"
        return self.state

    @property
    def begun_critics(self) -> Critics:
        """The critics, which `begin` or `read` has made."""
        assert self.critics is not None, "the config has no critics, or call begin first"
        return self.critics

    @property
    def whole(self) -> WholeState:
        """What a checkpoint stores, or, before there is a state, its shapes and shardings."""
        if self.state is None:
            return abstract_whole(self.config, self.policy, self.mesh)
        whole = WholeState(self.state, self.critics.state if self.critics else ())
        return stored(whole, self._base_digests) if self.config.lora.rank else whole

    @cached_property
    def _base_digests(self) -> jax.Array:
        """Of the weights beside adapters, which stay."""
        return digests_of(without_adapters(self.begun.params), self.mesh)

    # Where training starts.

    @command()
    def begin_warm_start(self, updates: int) -> None:
        """Makes the first weights, and the programs of supervised training. updates: of which the
        schedule's shares are."""
        config = self.config
        optimizer = make_optimizer(config.warm_start_optimizer, self.policy, config.lora, updates)
        self.state = first_state(config, self.policy, optimizer, self.mesh)
        self._supervised_step = make_supervised_step(self.model, optimizer)
        self._probability = make_probability(self.model, self.shape)
        self._nll = make_nll(self.model)

    @command(forgets=True)
    def supervise(self, batches: Sequence[Any], loss_denominator: float) -> Metrics:
        """Makes one update of the supervised loss, Eq 1, and returns its sums. The sums are still
        on the device."""
        denominator = np.float32(loss_denominator)
        self.state, sums, _ = self._supervised_step(self.begun, batches, denominator)
        return sums

    @command(forgets=True)
    def probability(self, batches: Sequence[Any]) -> float:
        """Returns the sum over all samples of the probability of their policy tokens."""
        return sum(self._probability(self.begun.params, batch) for batch in batches)

    @command(forgets=True)
    def nll(self, batches: Sequence[Any]) -> float:
        """Returns minus the log-probability of all policy tokens."""
        return sum(self._nll(self.begun.params, batch) for batch in batches)

    @command()
    def begin_preferences(self, updates: int) -> None:
        """Begins to learn from preference pairs, with the weights of the warm start if there was
        one. updates: of which the schedule's shares are."""
        config = self.config
        optimizer = make_optimizer(config.preferences_optimizer, self.policy, config.lora, updates)
        self._go_on_with(optimizer)
        self._preference_step = make_preference_step(self.model, optimizer)

    @command(rows=True, forgets=True)
    def present_logp(self, batches: Sequence[Any]) -> list[np.ndarray]:
        """Returns what `logp` does, under the present weights."""
        return [self._logp(self.begun.params, batch) for batch in batches]

    @command(forgets=True)
    def prefer(self, batches: Sequence[Any], loss_denominator: float) -> Metrics:
        """Makes one update from pairs, and returns its sums, still on the device."""
        denominator = np.float32(loss_denominator)
        self.state, sums, _ = self._preference_step(self.begun, batches, denominator)
        return sums

    @command()
    def begin(self) -> None:
        """Begins reinforcement learning, with the weights of the stages before if there were
        any."""
        config = self.config
        self._go_on_with(self._optimizer)
        if config.critics.count:
            key = jax.random.fold_in(jax.random.key(config.seed), CRITICS_STREAM)
            self.critics = Critics.make(
                config.critics, self.model, self.begun.params, key, config.critic_updates
            )

    def _go_on_with(self, optimizer: optax.GradientTransformation) -> None:
        if self.state is None:
            self.state = first_state(self.config, self.policy, optimizer, self.mesh)
        else:
            self.state = begin(self.begun.params, optimizer, self.mesh)

    # A step of reinforcement learning, in this order.

    @command(forgets=True)
    def begin_step(self, version: int) -> None:
        """Keeps the present weights as long as tokens of theirs may come. version: of these."""
        self._token_updates = []
        self._history.keep(version, self.begun.params)

    @command(rows=True)
    def logp(self, batches: Sequence[Any], weights: int) -> list[np.ndarray]:
        """Returns the log-probability of each policy token, float32 [B, T] for each batch; 0
        elsewhere. weights: their version."""
        return [self._logp(self._history[weights], batch) for batch in batches]

    @command(rows=True)
    def reference(self, batches: Sequence[Any]) -> list[Scores]:
        """Returns what the reference policy makes of the tokens of each batch."""
        assert self._reference is not None, "read the reference first"
        return self._reference.scores(batches)

    @command()
    def open_teacher(self) -> None:
        """Has the config's teacher for a reference policy."""
        self._reference = open_teacher(self.config, self.policy, self.mesh)

    @command(rows=True)
    def values(self, batches: Sequence[Any]) -> list[list[np.ndarray]]:
        """Returns the values V(s_t) of each critic (`Critics.values`)."""
        return self.begun_critics.values(batches)

    @command(rows=True)
    def attention_factors(self, batches: Sequence[Any], version: int) -> list[np.ndarray]:
        """Returns the factors of attention credit for each batch (`make_factors`)."""
        hp, chunks = self.config.attention_credit, self.shape.chunks_per_pack
        key = jax.random.fold_in(jax.random.key(self.config.seed), ATTENTION_CREDIT_STREAM)
        factors = make_factors(self.policy, hp, chunks, self.mesh, self.model.compute)
        return factors(self.begun.params, batches, jax.random.fold_in(key, version))

    @command()
    def update(self, batches: Sequence[Any], loss_denominator: float) -> Metrics:
        """Updates the policy once and returns sums of the step. The sums are still on the device.
        From the first update of a step to the publish, engines may lend their devices."""
        self.updates += 1
        denominator = np.float32(loss_denominator)
        if not self._token_updates:
            self._borrow()
        step = self._borrowed_step if self._borrows else self._step
        self.state, sums, tokens = step(self.begun, batches, denominator)
        self._token_updates += tokens
        return sums

    def _borrow(self) -> None:
        if self._lending and self.engines is not None:
            in_progress = self.engines.num_open()
            self._borrows = self._lending.lends(in_progress, self._borrows)
            if self._borrows:
                self.engines.lend(self._lending.count)

    @command()
    def begin_decay(self) -> None:
        """Lets the policy's learning rate fall from now on, unless it falls already."""
        state = self.begun
        self.state = dataclasses.replace(state, opt_state=begin_decay(state.opt_state))

    @command(rows=True)
    def token_updates(self) -> list[TokenUpdate]:
        """Returns what each update of this step was to the tokens of each of its batches."""
        return [TokenUpdate(*map(own_rows, each)) for each in self._token_updates]

    @command()
    def update_critic(self, batches: Sequence[Any], number: int, tokens: int) -> Metrics:
        """Updates the critic `number` once (`Critics.update`)."""
        self.updates += 1
        return self.begun_critics.update(batches, number, tokens)

    # Weights and files.

    @command(waits=True)
    def publish(self, version: int) -> float | None:
        """Hands the weights, as `version`, to this process's engines, or holds them until they are
        there. Returns for how many seconds engines had lent their devices; None if none ever do."""
        weights = self._sampling_copy(self.begun.params)
        if self.engines is None:
            self._published = weights, version
            return None
        seconds = self.engines.publish(weights, version)
        return seconds if self._lending else None

    @command()
    def digest(self) -> str:
        """Returns a digest of the weights that are trained, and of the critics', which changes with
        any of their bits, in hexadecimal digits."""
        critics = self.critics.state if self.critics else ()
        numbers = digests_of((trained(self.begun.params), critics), self.mesh)
        return hashlib.sha256(np.asarray(numbers).tobytes()).hexdigest()[:32]

    def open_engines(self, stop_ids: tuple[int, ...]) -> Engines:
        """Opens this process's engines, with the weights that were published."""
        assert self._published is not None, "publish weights first, and open the engines once"
        config, (weights, version) = self.config, self._published
        recorded = config.rl.router_replay, config.train_sampling.cuts
        self.engines = Engines(
            [
                Engine(self.policy, config.engine, stop_ids, params, mesh, *recorded)
                for params, mesh in zip(weights, self._engine_meshes, strict=True)
            ]
        )
        self.engines.publish(weights, version)
        self._published = None
        return self.engines

    @command()
    def write(self, folder: str, what: str) -> None:
        """Copies the state off the devices and writes it in the background. what: STATE for all
        that a checkpoint holds, or REFERENCE for the trained weights."""
        state = self.whole if what == STATE else trained(self.begun.params)
        self.files.write(Path(folder), state)

    @command()
    def read(self, folder: str, what: str) -> None:
        """Takes over what `write` wrote: continues with it, or has it for a reference policy."""
        if what == REFERENCE:
            found = self.files.read(Path(folder), trained(self.begun.params))
            params = with_trained(self.begun.params, found)
            top = self.config.algo.loss.kl_top
            score = make_score(self.policy, self.mesh, self.model.compute, top)
            self._reference = Reference(lambda: params, score)
            return
        whole = self.files.read(Path(folder), self.whole)
        if self.config.lora.rank:
            base = base_weights(self.config, self.policy, self.mesh)
            whole = restored(whole, base, digests_of(base, self.mesh))
        self.state = whole.policy
        if whole.critics:
            config = self.config
            self.critics = Critics(config.critics, self.model, whole.critics, config.critic_updates)

    @cached_property
    def files(self) -> OrbaxFiles:
        """The files that this process writes and reads."""
        return OrbaxFiles()

    def close(self) -> None:
        """Waits for the last `write`."""
        if "files" in vars(self):
            self.files.close()


class TrainerFiles:
    """Gives `Checkpoints` the files of a trainer on all processes. States are called by name.

    trainer: set as soon as the model is known, which may be read from the run's folder.
    """

    def __init__(self) -> None:
        self.trainer: Trainer | None = None

    @property
    def known(self) -> Trainer:
        """The trainer, once it is set."""
        assert self.trainer is not None, "set the trainer before files are used"
        return self.trainer

    def write(self, folder: Path, state: str) -> None:
        self.known.write(folder=str(folder), what=state)

    def wait(self) -> None:
        self.known.files.wait()  # until every process has written its part

    def read(self, folder: Path, target: str) -> None:
        self.known.read(folder=str(folder), what=target)

    def digests(self, folder: Path) -> Digests:
        return self.known.processes.digests(folder)

    def close(self) -> None:
        if self.trainer is not None:
            self.trainer.close()
