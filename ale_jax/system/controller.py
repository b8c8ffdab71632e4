"""A run from its first to its last line: warm start, reinforcement, evaluation, report.

Reads top to bottom like a protocol; every part that it names is built and owned here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Collection

import jax
import optax

from ale_jax.data.experts import Expert
from ale_jax.data.staleness import StalenessGate
from ale_jax.learn.checkpoint import Checkpoints
from ale_jax.learn.compilation import keep_compiled
from ale_jax.learn.critics import Critics
from ale_jax.learn.gap import gap_limit
from ale_jax.learn.learner import Learner
from ale_jax.learn.reference import load_reference, save_reference
from ale_jax.learn.rescore import make_scorer
from ale_jax.learn.state import TrainState, WholeState, begin, make_optimizer
from ale_jax.model.compute import sampling_weights
from ale_jax.model.params import Params
from ale_jax.model.shape import PolicyShape
from ale_jax.model.sharding import make_mesh
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.monitor.evaluations import (
    EVALUATIONS_FILE,
    FINAL,
    WARM_START,
    Evaluation,
    record_evaluation,
    recorded_names,
)
from ale_jax.monitor.report import write_report
from ale_jax.monitor.summary import write_summary
from ale_jax.records import Task
from ale_jax.rollout.door import PolicyDoor
from ale_jax.rollout.engine import Engine
from ale_jax.rollout.ledger import Ledger
from ale_jax.sandbox.api import Runtime
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.system import outcome
from ale_jax.system.cluster import ray_cluster
from ale_jax.system.config import RunConfig
from ale_jax.system.crew import Crew
from ale_jax.system.demonstrations import (
    make_tokenizer,
    mixed_samples,
    oracle_experts,
    play_lessons,
    tokenize,
)
from ale_jax.system.environment import STARTED, environment
from ale_jax.system.evaluate import evaluation_slots, require_judged, tally
from ale_jax.system.first_state import first_state
from ale_jax.system.improve import Cursor, StepReport, improve
from ale_jax.system.pump import Pump
from ale_jax.system.resampling import Resampler
from ale_jax.system.tasks import train_task
from ale_jax.system.warm_start import warm_start
from ale_jax.system.watch import Watch
from ale_jax.system.workdir import Workdir

CRITICS_STREAM = 1  # of the run's key


def run(config: RunConfig, workdir: Workdir) -> None:
    """Runs the experiment `config` in `workdir`, or goes on with it from its last checkpoint."""
    keep_compiled(config.compilation_cache)
    runtime = None
    if config.sandboxed:
        runtime = pick_runtime(config.rollout.runtime, config.sandboxed)
        runtime.reap()
        config = dataclasses.replace(
            config, rollout=dataclasses.replace(config.rollout, runtime=runtime.name)
        )
    with _Run(config, workdir, runtime) as session:
        session.go()


class _Run(contextlib.ExitStack):
    """What lives as long as the run does, closed in the reverse order of its making."""

    def __init__(self, config: RunConfig, workdir: Workdir, runtime: Runtime | None):
        super().__init__()
        self._config, self._workdir, self._runtime = config, workdir, runtime
        self._mesh = make_mesh(config.mesh)
        self._watch: Watch | None = None
        self._early_events: list[tuple[str, str, dict]] = []
        self._critics: Critics | None = None
        self._oracles: list[Expert] | None = None

    def go(self) -> None:
        state, cursor = self._restore()
        watch = self._watch
        watch.note(f"sandboxes: {self._sandboxes()}; devices: {self._mesh.devices.size}")
        if state is None:
            state, cursor = self._warm_start(), Cursor()
            self._keep_reference(state)
            self._critics = self._new_critics(state)
            self._save(state, cursor)
        crew, engine, pump = self._open_rollouts(state, cursor)
        if cursor.step == 0:
            self._evaluate(WARM_START, cursor, pump)
        state, cursor = self._improve(state, cursor, crew, engine, pump)
        self._evaluate(FINAL, cursor, pump)
        summary = outcome.summarize(
            self._config, self._workdir.path, cursor, crew.counts, watch.metrics.seconds()
        )
        self._checkpoints.wait()
        write_summary(self._workdir.path, summary)
        watch.note(f"report: {write_report(self._workdir.path)}")
        watch.note(outcome.headline(summary))

    def _sandboxes(self) -> str:
        if self._runtime is None:
            return "none, as no world needs any"
        limits = (f"{k} by {how}" for k, how in self._runtime.capabilities.items())
        return f"{self._runtime.name} ({', '.join(limits)})"

    def _restore(self) -> tuple[TrainState | None, Cursor | None]:
        """The newest whole checkpoint and its cursor, and the watch that goes on from there."""
        path, tokenizer_folder = self._workdir.path, self._workdir.path / "tokenizer"
        self._checkpoints = self.enter_context(
            Checkpoints(self._workdir.checkpoints, self._config.checkpoint.keep, self._record)
        )
        found = None
        if self._checkpoints.any():
            if not (tokenizer_folder / "tokenizer.json").exists():
                raise ValueError(
                    f"{tokenizer_folder} is gone, without which the checkpoints beside it mean "
                    "nothing: put it back, or --overwrite to start anew"
                )
            self._tokenizer = ChatTokenizer.load(tokenizer_folder)
            found = self._checkpoints.restore_latest(self._new_whole_state())
        step = found[0] if found else None
        if step and WARM_START not in recorded_names(path):
            raise ValueError(
                f"{path / EVALUATIONS_FILE} does not hold the evaluation of the warm start, which "
                "cannot be made any more: put it back, or --overwrite to start anew"
            )
        self._watch = self.enter_context(Watch(path, step))
        self.callback(self._checkpoints.wait)  # before the log closes that is told of the last save
        self._watch.events.record(STARTED, environment(self._mesh))
        for kind, detail, fields in self._early_events:
            self._watch.events.record(kind, detail, **fields)
        if found is None:
            return None, None
        _, state, host = found
        if self._critics:
            self._critics.state = state.critics
        self._watch.events.record("resumed", f"from the checkpoint of step {step}", step=step)
        return state.policy, Cursor(**host | {"groups": tuple(host["groups"])})

    def _record(self, kind: str, detail: str, **fields: str | int | float) -> None:
        """An event; kept aside until the log is open, which is when the restore is done."""
        if self._watch is None:
            self._early_events.append((kind, detail, fields))
        else:
            self._watch.events.record(kind, detail, **fields)

    def _policy(self) -> PolicyShape:
        return self._config.policy_shape(self._tokenizer.vocab_size)

    def _optimizer(self) -> optax.GradientTransformation:
        return make_optimizer(self._config.rl_optimizer, self._policy(), self._config.lora)

    def _new_state(self, optimizer: optax.GradientTransformation) -> TrainState:
        return first_state(self._config, self._policy(), optimizer, self._mesh)

    def _new_critics(self, state: TrainState) -> Critics | None:
        config = self._config
        if not config.critics.count:
            return None
        key = jax.random.fold_in(jax.random.key(config.seed), CRITICS_STREAM)
        return Critics.make(
            config.critics,
            self._policy(),
            state.params,
            config.algo.gamma,
            key,
            self._mesh,
            config.learn.compute,
            config.learn.balance_weight,
        )

    def _new_whole_state(self) -> WholeState:
        """For a checkpoint to be read into."""
        state = self._new_state(self._optimizer())
        self._critics = self._new_critics(state)
        return self._whole(state)

    def _whole(self, state: TrainState) -> WholeState:
        return WholeState(state, self._critics.state if self._critics else ())

    def _warm_start(self) -> TrainState:
        """Oracle transcripts, a tokenizer learned from them, and supervised training. With weights
        to start from and no step to make, only the tokenizer that came with the weights is kept."""
        config, watch, warm = self._config, self._watch, self._config.warm_start
        given, folder = config.tokenizer.path or config.weights, self._workdir.path / "tokenizer"
        domains, probe = [], []
        if warm.max_steps or not given:
            domains, probe = play_lessons(config, self._runtime, watch.progress)
        self._tokenizer = make_tokenizer(
            given, config.tokenizer.vocab_size, itertools.chain(*domains), folder
        )
        self._tokenizer.check_fits(self._policy().vocab_size)
        if config.resampling.wants_oracles:
            self._oracle_experts()  # one that is too long is refused before anything is trained
        if not warm.max_steps:
            return self._new_state(self._optimizer())
        optimizer = make_optimizer(config.warm_start_optimizer, self._policy(), config.lora)
        watch.progress.phase("warm start", warm.max_steps)
        state = warm_start(
            self._new_state(optimizer),
            optimizer,
            mixed_samples(config, domains, self._tokenizer),
            [tokenize(each, self._tokenizer) for each in probe],
            self._policy(),
            config.learn,
            config.lora,
            warm,
            self._mesh,
            watch.warm_start_step,
        )
        return begin(state.params, self._optimizer(), self._mesh)

    def _keep_reference(self, state: TrainState) -> None:
        """On disk, where a loss asks for it: checkpoints of later steps hold later weights."""
        if self._config.algo.loss.kl_weight > 0:
            save_reference(self._workdir.path, state.params, self._record)

    def _reference(self, state: TrainState) -> Params | None:
        if self._config.algo.loss.kl_weight > 0:
            return load_reference(self._workdir.path, state.params, self._record)
        return None

    def _save(self, state: TrainState, cursor: Cursor) -> None:
        if self._config.checkpoint.is_due(cursor.step, self._config.rl.steps):
            self._checkpoints.save(cursor.step, self._whole(state), dataclasses.asdict(cursor))

    def _open_rollouts(self, state: TrainState, cursor: Cursor) -> tuple[Crew, Engine, Pump]:
        config = self._config
        self.enter_context(ray_cluster(config.rollout.actors))
        compute, stored_as = config.learn.compute, config.engine.weights
        weights = sampling_weights(state.params, self._policy(), compute, self._mesh, stored_as)
        engine = Engine(
            self._policy(),
            config.engine,
            self._tokenizer.stop_ids,
            weights,
            cursor.step,
            self._mesh,
            config.rl.router_replay,
        )
        self.callback(engine.close)
        ledger = Ledger(engine, self._tokenizer, config.seed, config.rollout.max_reply_tokens)
        door = self.enter_context(PolicyDoor(ledger))
        crew = self.enter_context(
            Crew(config.rollout, config.sandboxed, config.agent, ledger, door, self._record)
        )
        return crew, engine, self.enter_context(Pump(crew, engine.check))

    def _evaluate(self, name: str, cursor: Cursor, pump: Pump) -> Evaluation:
        config, watch = self._config, self._watch
        slots = evaluation_slots(name, config.eval, config.worlds)
        watch.progress.phase(f"evaluation: {name}", len(slots))
        played = pump.evaluate(slots, config.eval_sampling, watch.progress.update)
        seconds = watch.metrics.seconds()
        evaluation = tally(name, cursor.step, seconds, played, config.worlds)
        require_judged(evaluation, len(slots))
        record_evaluation(self._workdir.path, evaluation)
        watch.note(outcome.evaluation_line(evaluation))
        return evaluation

    def _evaluate_on_the_way(self, cursor: Cursor, pump: Pump, known: Collection[str] = ()) -> None:
        """Every `eval.every` steps. known: what was evaluated with the weights of this cursor."""
        every, steps, name = self._config.eval.every, self._config.rl.steps, f"step_{cursor.step}"
        if every and 0 < cursor.step < steps and cursor.step % every == 0 and name not in known:
            self._evaluate(name, cursor, pump)
            self._watch.progress.phase(self._config.algo.name, steps)

    def _improve(
        self, state: TrainState, cursor: Cursor, crew: Crew, engine: Engine, pump: Pump
    ) -> tuple[TrainState, Cursor]:
        config, watch = self._config, self._watch
        rl, policy = config.rl, self._policy()
        score = make_scorer(policy, config.learn.shape, self._mesh, config.learn.compute)
        limit = gap_limit(config.learn.compute, config.engine.eight_bits)

        def report(step: StepReport) -> None:
            watch.rl_step(step, crew, engine.stats.sampled_tokens, limit)
            watch.sample_trajectories(step, score, config.algo.mismatch)
            self._evaluate_on_the_way(step.cursor, pump)

        # If the run was stopped before it could.
        self._evaluate_on_the_way(cursor, pump, recorded_names(self._workdir.path))
        resampler = self._open_resampling(cursor, pump)
        watch.progress.phase(config.algo.name, rl.steps)
        return improve(
            state,
            cursor,
            config,
            policy,
            self._learner(state),
            self._mesh,
            engine,
            pump,
            resampler,
            self._save,
            report,
        )

    def _learner(self, state: TrainState) -> Learner:
        config, learn = self._config, self._config.learn
        return Learner(
            config.algo,
            config.rhythm,
            self._policy(),
            self._optimizer(),
            learn.balance_weight,
            learn.shape,
            self._mesh,
            learn.compute,
            config.lora,
            StalenessGate(config.rl.alpha, config.rl.groups_per_step).max_age,
            config.seed,
            self._critics,
            self._reference(state),
        )

    def _open_resampling(self, cursor: Cursor, pump: Pump) -> Resampler:
        """As the checkpoint left it, or a new one, which an oracle may have taught already."""
        config, hp, state = self._config, self._config.resampling, cursor.resampling
        size, seed = config.rl.group_size, config.seed
        resampler = Resampler(hp, self._train_task, size, seed, self._record, state)
        if state is None and hp.wants_oracles:
            experts = self._oracle_experts()
            resampler.admit(experts, lambda checks: pump.play(checks, config.train_sampling))
        return resampler

    def _oracle_experts(self) -> list[Expert]:
        """Of every training task; played once."""
        config, progress, worlds = self._config, self._watch.progress, self._config.worlds
        if self._oracles is None:
            count = worlds.tasks_per_family * len(worlds.train_families)
            tasks = list(map(self._train_task, range(count)))
            progress.phase("oracle experts", len(tasks))
            played = oracle_experts(config, tasks, self._runtime, self._tokenizer, progress.update)
            self._oracles = played
        return self._oracles

    def _train_task(self, number: int) -> Task:
        worlds, seed = self._config.worlds, self._config.seed
        return train_task(number, worlds.train_families, seed, worlds.tasks_per_family)
