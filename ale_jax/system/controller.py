"""A run from its first to its last line: warm start, reinforcement, evaluation, report.

Reads top to bottom like a protocol; every part that it names is built and owned here.
"""

from __future__ import annotations

import contextlib
import dataclasses

import optax

from ale_jax.data.packing import Shape
from ale_jax.learn.checkpoint import Checkpoints
from ale_jax.learn.compilation import keep_compiled
from ale_jax.learn.gap import gap_limit
from ale_jax.learn.reference import load_reference, save_reference
from ale_jax.learn.rescore import make_scorer
from ale_jax.learn.state import TrainState, begin, make_optimizer
from ale_jax.model.compute import sampling_weights
from ale_jax.model.params import Params
from ale_jax.model.shape import PolicyShape
from ale_jax.model.sharding import make_mesh
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.monitor.evaluations import FINAL, WARM_START, Evaluation, record_evaluation
from ale_jax.monitor.report import write_report
from ale_jax.monitor.summary import write_summary
from ale_jax.records import Task
from ale_jax.rollout.door import PolicyDoor
from ale_jax.rollout.engine import Engine
from ale_jax.rollout.ledger import Ledger
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.system import outcome
from ale_jax.system.cluster import ray_cluster
from ale_jax.system.config import RunConfig
from ale_jax.system.crew import Crew
from ale_jax.system.demonstrations import (
    check_oracles,
    demonstrate,
    make_tokenizer,
    oracle_expert,
)
from ale_jax.system.evaluate import evaluation_slots, tally
from ale_jax.system.first_state import first_state
from ale_jax.system.improve import Cursor, StepReport, improve
from ale_jax.system.pump import Pump
from ale_jax.system.resampling import Resampler
from ale_jax.system.tasks import demonstration_tasks, probe_tasks, train_task
from ale_jax.system.warm_start import tokenize, warm_start
from ale_jax.system.watch import Watch
from ale_jax.system.workdir import Workdir

DEMONSTRATORS = 4  # sandboxes that play oracles at once, in this process


def run(config: RunConfig, workdir: Workdir) -> None:
    """Runs the experiment `config` in `workdir`, or goes on with it from its last checkpoint."""
    keep_compiled(config.compilation_cache)
    runtime = pick_runtime(config.rollout.runtime, config.sandbox)
    runtime.reap()
    config = dataclasses.replace(
        config, rollout=dataclasses.replace(config.rollout, runtime=runtime.name)
    )
    with _Run(config, workdir, runtime) as session:
        session.go()


class _Run(contextlib.ExitStack):
    """What lives as long as the run does, closed in the reverse order of its making."""

    def __init__(self, config: RunConfig, workdir: Workdir, runtime):
        super().__init__()
        self._config, self._workdir, self._runtime = config, workdir, runtime
        self._mesh = make_mesh(config.mesh)
        self._watch: Watch | None = None
        self._early_events: list[tuple[str, str, dict]] = []
        self._shape = Shape(config.learn.rows, config.learn.row_tokens, config.learn.chunks_per_row)

    def go(self) -> None:
        state, cursor = self._restore()
        watch = self._watch
        limits = ", ".join(f"{k} by {how}" for k, how in self._runtime.capabilities.items())
        watch.note(
            f"sandboxes: {self._runtime.name} ({limits}); devices: {self._mesh.devices.size}"
        )
        if state is None:
            state, cursor = self._warm_start(), Cursor()
            self._keep_reference(state)
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
            found = self._checkpoints.restore_latest(self._new_state(self._optimizer()))
        step = found[0] if found else None
        self._watch = self.enter_context(Watch(path, step))
        self.callback(self._checkpoints.wait)  # before the log closes that is told of the last save
        for kind, detail, fields in self._early_events:
            self._watch.events.record(kind, detail, **fields)
        if found is None:
            return None, None
        _, state, host = found
        self._watch.events.record("resumed", f"from the checkpoint of step {step}", step=step)
        return state, Cursor(**host | {"groups": tuple(host["groups"])})

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

    def _warm_start(self) -> TrainState:
        """Oracle transcripts, a tokenizer learned from them, and supervised training."""
        config, watch = self._config, self._watch
        families, warm = config.worlds.train_families, config.warm_start
        tasks = demonstration_tasks(warm.transcripts_per_family, families, config.seed)
        unseen = probe_tasks(warm.probe_tasks, families)
        watch.progress.phase("oracle transcripts", len(tasks) + len(unseen))
        transcripts = demonstrate(
            self._runtime, config.sandbox, [*tasks, *unseen], DEMONSTRATORS, watch.progress.update
        )
        folder = self._workdir.path / "tokenizer"
        given = config.tokenizer.path or config.weights
        self._tokenizer = make_tokenizer(
            given, config.tokenizer.vocab_size, transcripts[: len(tasks)], folder
        )
        self._tokenizer.check_fits(self._policy().vocab_size)
        samples = [tokenize(t, self._tokenizer) for t in transcripts]
        optimizer = make_optimizer(config.warm_start_optimizer, self._policy(), config.lora)
        watch.progress.phase("warm start", warm.max_steps)
        state = warm_start(
            self._new_state(optimizer),
            optimizer,
            samples[: len(tasks)],
            samples[len(tasks) :],
            self._policy(),
            config.learn,
            config.lora,
            warm,
            self._mesh,
            config.seed,
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
        every, last = self._config.checkpoint.every, self._config.rl.steps
        if cursor.step % every == 0 or cursor.step == last:
            self._checkpoints.save(cursor.step, state, dataclasses.asdict(cursor))

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
            Crew(config.rollout, config.sandbox, config.agent, ledger, door, self._record)
        )
        return crew, engine, self.enter_context(Pump(crew))

    def _evaluate(self, name: str, cursor: Cursor, pump: Pump) -> Evaluation:
        config, watch = self._config, self._watch
        slots = evaluation_slots(name, config.eval, config.worlds)
        watch.progress.phase(f"evaluation: {name}", len(slots))
        played = pump.evaluate(slots, config.eval_sampling, watch.progress.update)
        seconds = watch.metrics.seconds()
        evaluation = tally(name, cursor.step, seconds, played, config.worlds)
        record_evaluation(self._workdir.path, evaluation)
        watch.note(outcome.evaluation_line(evaluation))
        return evaluation

    def _improve(
        self, state: TrainState, cursor: Cursor, crew: Crew, engine: Engine, pump: Pump
    ) -> tuple[TrainState, Cursor]:
        config, watch = self._config, self._watch
        rl, policy = config.rl, self._policy()
        score = make_scorer(policy, self._shape, self._mesh, config.learn.compute)

        limit = gap_limit(config.learn.compute, config.engine.eight_bits)

        def report(step: StepReport) -> None:
            watch.rl_step(step, crew, engine.stats.sampled_tokens, limit)
            watch.sample_trajectories(step, score, config.algo.mismatch)
            every = config.eval.every
            if every and step.cursor.step % every == 0 and step.cursor.step < rl.steps:
                self._evaluate(f"step_{step.cursor.step}", step.cursor, pump)
                watch.progress.phase(config.algo.name, rl.steps)

        resampler = self._open_resampling(cursor, pump)
        watch.progress.phase(config.algo.name, rl.steps)
        return improve(
            state,
            cursor,
            config,
            policy,
            self._optimizer(),
            self._mesh,
            engine,
            pump,
            resampler,
            self._save,
            report,
            self._reference(state),
        )

    def _open_resampling(self, cursor: Cursor, pump: Pump) -> Resampler:
        """As the checkpoint left it, or a new one, which an oracle may have taught already."""
        config, worlds = self._config, self._config.worlds
        hp, families, distinct = config.resampling, worlds.train_families, worlds.tasks_per_family

        def task_of(number: int) -> Task:
            return train_task(number, families, config.seed, distinct)

        size, state = config.rl.group_size, cursor.resampling
        resampler = Resampler(hp, task_of, size, config.seed, self._record, state)
        if state is None and hp.wants_oracles:
            tasks = [task_of(number) for number in range(distinct * len(families))]
            self._watch.progress.phase("oracle experts", len(tasks))
            transcripts = demonstrate(
                self._runtime, config.sandbox, tasks, DEMONSTRATORS, self._watch.progress.update
            )
            experts = [oracle_expert(*each, self._tokenizer) for each in zip(tasks, transcripts)]
            check_oracles(experts, config.agent.turns, config.engine.slot_tokens)
            resampler.admit(experts, lambda checks: pump.play(checks, config.train_sampling))
        return resampler
