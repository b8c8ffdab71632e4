"""The controller: a single process that drives a run from its start to its report."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from ale_jax.data.journal import JOURNAL_DIR, Journal
from ale_jax.errors import RolloutsFailed
from ale_jax.gateway.app import make_app
from ale_jax.gateway.custody.ledger import Ledger
from ale_jax.gateway.server import served
from ale_jax.learn.checkpoint import Checkpoints
from ale_jax.learn.learner import Learner
from ale_jax.learn.old_policies import REFERENCE, load_reference, save_reference
from ale_jax.learn.step import logp_diff_limit
from ale_jax.model.shape import PolicyShape
from ale_jax.model.sharding import make_mesh
from ale_jax.monitor.evaluations import (
    FINAL,
    WARM_START,
    record_evaluation,
    recorded_names,
    write_summary,
)
from ale_jax.monitor.events import EarlyEvents
from ale_jax.monitor.report import write_report
from ale_jax.sandbox.api import Runtime
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.system.actors.cluster import check_address, ray_cluster
from ale_jax.system.actors.policy_replicas import PolicyReplica, PolicyReplicas
from ale_jax.system.actors.rollout_scheduler import RolloutScheduler
from ale_jax.system.actors.rollout_worker import WorkerSpec
from ale_jax.system.actors.rollout_workers import RolloutWorkers
from ale_jax.system.collector import spared_by_collector
from ale_jax.system.compilation import STARTED, environment, keep_compiled
from ale_jax.system.config import RunConfig
from ale_jax.system.hosts.commands import Processes
from ale_jax.system.placement_config import PlacementConfig
from ale_jax.system.resampling import Resampler
from ale_jax.system.run_logger import RunLogger, evaluation_line, headline, summarize
from ale_jax.system.saving import Saver
from ale_jax.system.start import Setting, Start, begin_anew, play_oracles, restore
from ale_jax.system.step_metrics import StepReport
from ale_jax.system.stopping import StopSignals
from ale_jax.system.tasks import Cursor, evaluation_keys, require_judged, tally
from ale_jax.system.train_loop import TrainParts, train_loop
from ale_jax.system.trainer import TrainerFiles
from ale_jax.system.watchdog import STACKS_FILE, Sign, Watchdog, append_stacks
from ale_jax.system.workdir import Workdir


def run(
    config: RunConfig,
    workdir: Workdir,
    stop: StopSignals,
    processes: Processes,
    ray_address: str = "",
) -> None:
    """Runs the experiment `config` in `workdir`, or continues it from its newest checkpoint.

    processes: those that train. ray_address: of the Ray cluster that plays the episodes; empty: Ray
    is started on this machine.

    KeyboardInterrupt if it was stopped by a signal; the newest step is saved then.
    """
    if ray_address:
        check_address(ray_address)
    keep_compiled(config.compilation_cache)
    runtime = None
    if config.sandboxed:
        runtime = pick_runtime(config.rollout.runtime, config.sandboxed)
        runtime.reap()
        rollout = dataclasses.replace(config.rollout, runtime=runtime.name)
        config = dataclasses.replace(config, rollout=rollout)
    files = TrainerFiles()
    setting = Setting(config, workdir, make_mesh(config.mesh), runtime, processes, files)
    # The stack is closed from its end:
    #   scheduler   its thread gives no more episodes to the workers
    #   workers     their actors and sandboxes end, while the gateway still answers them
    #   gateway     nobody calls it any more
    #   engines     nobody waits for a reply any more
    #   Ray         no actor is left
    #   journal     nobody delivers trajectories any more
    #   watchdog    until here it can say what the closing waits for; it needs the logger
    #   the wait for the last save, whose end is an event
    #   logger      nobody records anything any more
    #   checkpoints, and the files of the trainer, by which they write
    with contextlib.ExitStack() as stack:
        events = EarlyEvents()
        stack.callback(files.close)
        checkpoints = stack.enter_context(
            Checkpoints(
                *(workdir.checkpoints, config.checkpoint.keep, events.record),
                files,
                workdir.lease,
            )
        )
        restored = restore(setting, checkpoints)
        step = restored.cursor.step if restored else None
        logger = stack.enter_context(RunLogger(workdir.path, step))
        # Entered after the logger, so that the end of the last save is still logged.
        stack.callback(checkpoints.wait)
        logger.events.record(STARTED, environment(setting.mesh))
        events.open(logger.events)
        if restored:
            logger.note_resumed(restored.cursor)
        look = _Look(logger, workdir.path / STACKS_FILE)
        stack.enter_context(Watchdog(config.deadlines.watchdog_seconds, look, look.record_stall))
        logger.note(f"sandboxes: {_describe(runtime)}; devices: {setting.mesh.devices.size}")
        start = restored or begin_anew(setting, checkpoints, logger, stop)
        journal = stack.enter_context(Journal(workdir.path / JOURNAL_DIR, logger.events.record))
        session = _Session(setting, start, checkpoints, journal, logger, stop)
        trainer, cursor = start.trainer, start.cursor
        saver = Saver(checkpoints, journal, config, trainer, cursor, logger.record)
        if not restored:
            session.keep_reference()
            saver.save(cursor, lambda: None)
        try:
            # Ray forks. Before Python 3.12 the child of a fork hangs, and its parent with it, if
            # one of Orbax's threads enters Python at that moment (python/cpython#112275).
            checkpoints.wait()
            look.rollouts = _open_rollouts(session, ray_address, stack)
            logger.rollouts_begin()
            stack.enter_context(spared_by_collector())
            session.reinforce(look.rollouts, saver)
        except (KeyboardInterrupt, RolloutsFailed):
            saver.save_newest()
            checkpoints.wait()
            stop.note_saved()
            raise


def _describe(runtime: Runtime | None) -> str:
    if runtime is None:
        return "none, as no task needs one"
    limits = (f"{name} by {how}" for name, how in runtime.capabilities.items())
    return f"{runtime.name} ({', '.join(limits)})"


class _RolloutSide(NamedTuple):
    """The rollout side of a run."""

    workers: RolloutWorkers
    replicas: PolicyReplicas
    scheduler: RolloutScheduler


class _Look:
    """What the watchdog sees of a run, and records. rollouts: None before they are opened."""

    def __init__(self, logger: RunLogger, stacks: Path):
        self._logger, self._stacks = logger, stacks
        self.rollouts: _RolloutSide | None = None

    def __call__(self) -> Sign:
        phase, done = progress = self._logger.progress.position()
        waits_for = f"{phase}, after step {done}"
        if self.rollouts is None:
            return Sign(progress, waits_for)
        workers, replicas, scheduler = self.rollouts
        played = scheduler.delivered, replicas.sampled_tokens()
        return Sign((progress, played), f"{waits_for}; {workers.waiting_for() or 'no episodes'}")

    def record_stall(self, text: str) -> None:
        self._logger.record("stalled", text)
        append_stacks(self._stacks, text)


def _open_rollouts(
    session: _Session, ray_address: str, stack: contextlib.ExitStack
) -> _RolloutSide:
    """Starts or joins Ray, and starts the engine, the gateway and the rollout workers;
    `stack` closes them."""
    config, tokenizer = session.config, session.start.tokenizer
    rollout, processes = config.rollout, session.setting.processes
    cluster = stack.enter_context(ray_cluster(rollout.actors, ray_address))
    if not ray_address:  # there is one node, and nothing to choose
        rollout = dataclasses.replace(rollout, placement=PlacementConfig())
    session.start.trainer.publish(version=session.start.cursor.step)
    engines = session.start.trainer.open_engines(tokenizer.stop_ids)
    stack.callback(engines.close)
    limit, turns = config.rollout.max_reply_tokens, config.agent.turns
    branches = config.external_agent.branches
    ledger = Ledger(engines, tokenizer, config.seed, limit, turns, branches)
    gateway = make_app(ledger.episodes, config.name, engines.counts, engines.check)
    url = stack.enter_context(served(gateway, cluster.address or processes.address))
    own = PolicyReplica(ledger, url, lambda: engines.stats.sampled_tokens)
    folder = session.setting.tokenizer_folder
    files = {file.name: file.read_text() for file in folder.iterdir()}
    replicas = PolicyReplicas([own, *processes.open_replicas(files, cluster.address)])
    spec = WorkerSpec(config.rollout.runtime, config.sandboxed, config.agent, config.external_agent)
    workers = stack.enter_context(
        RolloutWorkers(rollout, config.deadlines, spec, replicas, session.logger.record)
    )

    def check_system() -> None:
        session.setting.workdir.lease.check()
        engines.check()
        cluster.check()
        processes.check()

    scheduler = stack.enter_context(RolloutScheduler(workers, check_system))
    return _RolloutSide(workers, replicas, scheduler)


@dataclasses.dataclass(frozen=True)
class _Session:
    """A run that has its starting state: evaluates, trains, saves and records it."""

    setting: Setting
    start: Start
    checkpoints: Checkpoints
    journal: Journal
    logger: RunLogger
    stop: StopSignals

    @property
    def config(self) -> RunConfig:
        return self.setting.config

    @property
    def policy(self) -> PolicyShape:
        return self.setting.policy(self.start.tokenizer)

    def reinforce(self, rollouts: _RolloutSide, saver: Saver) -> None:
        """Evaluates, trains, evaluates again, and writes the summary and the report."""
        if self.start.cursor.step == 0:
            self.evaluate(WARM_START, self.start.cursor, rollouts.scheduler)
        cursor = self._train(rollouts, saver)
        self.evaluate(FINAL, cursor, rollouts.scheduler)
        path, seconds = self.setting.path, self.logger.metrics.seconds()
        summary = summarize(self.config, path, cursor, seconds)
        self.checkpoints.wait()
        write_summary(path, summary)
        self.logger.note(f"report: {write_report(path)}")
        self.logger.note(headline(summary))

    def keep_reference(self) -> None:
        """Stores the reference policy if the loss has a KL term. Later checkpoints do not contain
        it, as they hold later weights."""
        if self.config.algo.loss.kl_weight > 0:
            record, setting = self.logger.events.record, self.setting
            lease = setting.workdir.lease
            save_reference(setting.path, REFERENCE, record, setting.files, lease)

    def evaluate(self, name: str, cursor: Cursor, scheduler: RolloutScheduler) -> None:
        config, logger = self.config, self.logger
        keys = evaluation_keys(name, config.eval, config.worlds)
        logger.progress.phase(f"evaluation: {name}", len(keys), unit="episodes")

        def on_result(done: int) -> None:
            self.stop.check()
            logger.progress.update(done)

        played = scheduler.evaluate(keys, config.eval_sampling, on_result)
        evaluation = tally(name, cursor.step, logger.metrics.seconds(), played, config.worlds)
        require_judged(evaluation, len(keys))
        record_evaluation(self.setting.path, evaluation)
        logger.note(evaluation_line(evaluation))

    def evaluate_if_due(
        self, cursor: Cursor, scheduler: RolloutScheduler, known: Collection[str] = ()
    ) -> None:
        """Evaluates every `eval.every` steps.

        known: names of the evaluations that are already recorded.
        """
        every, steps, name = self.config.eval.every, self.config.rl.steps, f"step_{cursor.step}"
        if every and 0 < cursor.step < steps and cursor.step % every == 0 and name not in known:
            self.evaluate(name, cursor, scheduler)
            self.logger.progress.phase(self.config.algo.name, steps, cursor.step)

    def _train(self, rollouts: _RolloutSide, saver: Saver) -> Cursor:
        config, logger, cursor = self.config, self.logger, self.start.cursor
        # The run may have been stopped between a step and its evaluation.
        self.evaluate_if_due(cursor, rollouts.scheduler, recorded_names(self.setting.path))
        resampler = self._open_resampler(rollouts.scheduler)
        before = self.setting.processes.traffic()
        logger.progress.phase(config.algo.name, config.rl.steps, cursor.step)
        callbacks = _Callbacks(self, rollouts, saver)
        parts = TrainParts(
            config, self._learner(), rollouts.scheduler, resampler, self.journal, callbacks
        )
        cursor = train_loop(cursor, parts)
        for each, earlier in zip(self.setting.processes.traffic(), before, strict=True):
            sent = each - earlier
            detail = f"{sent.sent >> 10} KiB to another process, {sent.rows >> 10} KiB of them rows"
            logger.events.record("traffic", detail, sent=sent.sent, rows=sent.rows)
        return cursor

    def _learner(self) -> Learner:
        config = self.config
        if config.algo.loss.kl_weight > 0:
            path, record = self.setting.path, self.logger.events.record
            load_reference(path, REFERENCE, record, self.setting.files)
        return self.start.trainer.make_learner()

    def _open_resampler(self, scheduler: RolloutScheduler) -> Resampler:
        """The resampler of the checkpoint, or a new one, which may start with oracle experts."""
        config, state = self.config, self.start.cursor.resampling
        resampler = Resampler(
            config.resampling,
            self.setting.train_task,
            config.rl.group_size,
            config.seed,
            self.logger.events.record,
            state,
        )
        if state is None and config.resampling.wants_oracles:
            experts = self.start.oracles
            if experts is None:  # the run was restored from the checkpoint before its first step
                tokenizer = self.start.tokenizer
                experts = play_oracles(self.setting, tokenizer, self.logger, self.stop)
            sampling, on_result = config.train_sampling, lambda done: self.stop.check()
            resampler.admit(experts, lambda checks: scheduler.play(checks, sampling, on_result))
        return resampler


class _Callbacks:
    """What the train loop asks of a session, while its rollouts are open."""

    def __init__(self, session: _Session, rollouts: _RolloutSide, saver: Saver):
        config = session.config
        self._session, self._rollouts = session, rollouts
        self._logp_diff_limit = logp_diff_limit(config.learn.compute, config.engine.eight_bits)
        self.save, self.check_stop = saver.save, session.stop.check
        self.note_dropped = session.logger.note_dropped

    def publish(self, version: int) -> None:
        self._session.start.trainer.publish(version=version)

    def report(self, step: StepReport) -> None:
        session, rollouts = self._session, self._rollouts
        tokens = rollouts.replicas.sampled_tokens()
        session.logger.rl_step(step, rollouts.workers, tokens, self._logp_diff_limit)
        session.logger.sample_trajectories(step, session.config.algo.mismatch)
        session.evaluate_if_due(step.cursor, rollouts.scheduler)
