"""The controller: a single process that drives a run from its start to its report."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Collection, Sequence

from ale_jax.config.run import RunConfig
from ale_jax.data.journal import JOURNAL_DIR, Journal
from ale_jax.data.replay import DroppedGroup, Group
from ale_jax.data.step_files import STEPS_DIR, write_step
from ale_jax.errors import RolloutsFailed
from ale_jax.learn.checkpoint import Checkpoints
from ale_jax.learn.step import logp_diff_limit
from ale_jax.monitor.evaluations import (
    FINAL,
    WARM_START,
    record_evaluation,
    recorded_names,
    write_summary,
)
from ale_jax.monitor.events import EarlyEvents
from ale_jax.monitor.report import write_report
from ale_jax.monitor.timeline import EVALUATION, REPORT, START, Timeline
from ale_jax.records import Task
from ale_jax.sandbox.api import Runtime
from ale_jax.system.compilation import STARTED, environment, keep_compiled
from ale_jax.system.evaluated import write_episodes, write_trained
from ale_jax.system.group_feed import GroupFeed, Snapshot
from ale_jax.system.hosts.commands import Processes
from ale_jax.system.interpreter import made_for_serving
from ale_jax.system.rollouts.opening import Rollouts, open_rollouts
from ale_jax.system.run_logger import RunLogger, headline, summarize
from ale_jax.system.saving import Saver
from ale_jax.system.start import (
    Setting,
    Start,
    begin_anew,
    keep_reference,
    make_setting,
    open_reference,
    open_resampler,
    record_start,
    restore,
)
from ale_jax.system.step_metrics import StepReport
from ale_jax.system.stopping import StopSignals
from ale_jax.system.tasks import Cursor, require_judged, tally
from ale_jax.system.train_loop import train_loop
from ale_jax.system.untrained import UntrainedSteps
from ale_jax.system.watchdog import STACKS_FILE, Sign, Watchdog, append_stacks
from ale_jax.system.workdir import Workdir
from ale_jax.worlds.digests import choices, digests, selections


def run(
    config: RunConfig,
    workdir: Workdir,
    stop: StopSignals,
    processes: Processes,
    ray_address: str = "",
) -> None:
    """Runs the experiment `config` in `workdir`, or continues it from its newest checkpoint.

    processes: those that train. ray_address: of the Ray cluster that plays the episodes; empty:
    they are played on this machine.

    KeyboardInterrupt if it was stopped by a signal; the newest step is saved then.
    """
    keep_compiled(config.compilation_cache)
    setting = make_setting(config, workdir, stop, processes)
    # The stack is closed from its end:
    #   scheduler   its thread gives no more episodes to the workers
    #   workers     they and their sandboxes end, while the gateway still answers them
    #   gateway     nobody calls it any more
    #   engines     nobody waits for a reply any more
    #   Ray         no actor is left
    #   timeline    nobody does anything any more
    #   journal     nobody delivers trajectories any more
    #   watchdog    until here it can say what the closing waits for; it needs the logger
    #   the wait for the last save, whose end is an event
    #   logger      nobody records anything any more
    #   checkpoints, and the files of the trainer, by which they write
    with contextlib.ExitStack() as stack:
        events = EarlyEvents()
        stack.callback(setting.files.close)
        checkpoints = stack.enter_context(
            Checkpoints(
                *(workdir.checkpoints, config.checkpoint.keep, events.record),
                setting.files,
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
            logger.note_resumed(restored.cursor, workdir.changes)
        families = setting.schedule.families
        logger.note_worlds({**dict(digests(families)), **choices(families)})
        for account in selections(families):
            logger.record("items_selected", account)
        watchdog = stack.enter_context(_watchdog(setting, logger))
        logger.note(f"sandboxes: {_describe(setting.runtime)}; devices: {setting.devices}")
        start = restored or begin_anew(setting, checkpoints, logger)
        journal = stack.enter_context(Journal(workdir.path / JOURNAL_DIR, logger.events.record))
        trainer, cursor = start.trainer, start.cursor
        saver = Saver(checkpoints, journal, setting.config, trainer, cursor, logger.record)
        if not restored:
            keep_reference(setting, logger)
            if config.rl.record_steps:
                record_start(setting, cursor)
            saver.save(cursor, lambda: None)
        try:
            # Ray forks. Before Python 3.12 the child of a fork hangs, and its parent with it, if
            # one of Orbax's threads enters Python at that moment (python/cpython#112275).
            checkpoints.wait()
            timeline = _timeline(setting, stack) if config.timeline else None
            rollouts = open_rollouts(setting, start, logger.record, ray_address, stack, timeline)
            rollouts.workers.note_times(logger.attempt)
            watchdog.watch(functools.partial(_sign, logger, rollouts))
            logger.rollouts_begin()
            stack.enter_context(made_for_serving())
            untrained = UntrainedSteps(config.rl.groups_per_step, logger.record)
            parts = start, rollouts, logger, saver, untrained, timeline
            cursor = Run(setting, *parts).reinforce(journal)
            _conclude(setting, cursor, checkpoints, logger)
        except (KeyboardInterrupt, RolloutsFailed):
            saver.save_newest()
            checkpoints.wait()
            stop.note_saved()
            raise


def _conclude(
    setting: Setting, cursor: Cursor, checkpoints: Checkpoints, logger: RunLogger
) -> None:
    """Writes the summary and the report, once the last checkpoint is durable."""
    summary = summarize(setting.config, setting.path, cursor, logger.metrics.seconds())
    checkpoints.wait()
    write_summary(setting.path, summary)
    logger.note(f"report: {write_report(setting.path)}")
    logger.note(headline(summary))
    if summary.untrained:
        logger.note(summary.untrained)


def _describe(runtime: Runtime | None) -> str:
    if runtime is None:
        return "none, as no task needs one"
    limits = (f"{name} by {how}" for name, how in runtime.capabilities.items())
    return f"{runtime.name} ({', '.join(limits)})"


def _timeline(setting: Setting, stack: contextlib.ExitStack) -> Timeline:
    lease = setting.workdir.lease
    return stack.enter_context(Timeline(setting.path, lambda: lease.is_held))


def _watchdog(setting: Setting, logger: RunLogger) -> Watchdog:
    """Makes the watchdog of a run that has no rollouts yet."""

    def record_stall(text: str) -> None:
        logger.record("stalled", text)
        append_stacks(setting.path / STACKS_FILE, text)

    seconds = setting.config.deadlines.watchdog_seconds
    return Watchdog(seconds, functools.partial(_sign, logger), record_stall)


def _sign(logger: RunLogger, rollouts: Rollouts | None = None) -> Sign:
    """Returns what the watchdog sees of a run. rollouts: None before they are opened."""
    phase, done = progress = logger.progress.position()
    waits_for = f"{phase}, after step {done}"
    if rollouts is None:
        return Sign(progress, waits_for)
    workers, replicas, scheduler = rollouts
    played = scheduler.delivered, replicas.sampled_tokens()
    return Sign((progress, played), f"{waits_for}; {workers.waiting_for() or 'no episodes'}")


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that has its starting state and its rollouts: it evaluates, trains and reports.

    It is the `TrainedRun` of the train loop.
    """

    setting: Setting
    start: Start
    rollouts: Rollouts
    logger: RunLogger
    saver: Saver
    untrained: UntrainedSteps
    timeline: Timeline | None

    def reinforce(self, journal: Journal) -> Cursor:
        """Evaluates, trains, and evaluates again. Returns the last cursor."""
        self.lap(START)
        if self.start.cursor.step == 0:
            self._evaluate(WARM_START, self.start.cursor)
        cursor = self._train(journal)
        self._evaluate(FINAL, cursor)
        return cursor

    def _train(self, journal: Journal) -> Cursor:
        config, logger, cursor = self.setting.config, self.logger, self.start.cursor
        scheduler, processes = self.rollouts.scheduler, self.setting.processes
        # The run may have been stopped between a step and its evaluation.
        self._evaluate_if_due(cursor, recorded_names(self.setting.path))
        resampler = open_resampler(self.setting, self.start, scheduler, logger)
        before = processes.traffic()
        logger.progress.phase(config.algo.name, config.rl.steps, cursor.step)
        setting, record = self.setting, logger.events.record
        reference = open_reference(config, setting.path, setting.files, record)
        learner = self.start.trainer.make_learner(reference)
        feed = GroupFeed(config, cursor, scheduler, resampler, journal, self._note_dropped)
        self.lap(START)
        cursor = train_loop(cursor, config, learner, feed, resampler, self)
        for each, earlier in zip(processes.traffic(), before, strict=True):
            sent = each - earlier
            detail = f"{sent.sent >> 10} KiB to another process, {sent.rows >> 10} KiB of them rows"
            logger.events.record("traffic", detail, sent=sent.sent, rows=sent.rows)
        return cursor

    def _note_dropped(self, group: DroppedGroup, task: Task) -> None:
        self.logger.note_dropped(group, task)
        self.untrained.note_dropped(group)

    # What the train loop asks for.

    def keep(self, step: int, groups: Sequence[Group]) -> None:
        if self.setting.config.rl.record_steps:
            write_step(self.setting.path / STEPS_DIR, step, groups)

    def save(self, cursor: Cursor, resampling: Snapshot) -> None:
        self.saver.save(cursor, resampling)

    def publish(self, version: int) -> float | None:
        return self.start.trainer.publish(version=version)

    def report(self, step: StepReport) -> None:
        config, rollouts = self.setting.config, self.rollouts
        if config.rl.record_steps:
            step = dataclasses.replace(step, weights=self.start.trainer.digest())
        limit = logp_diff_limit(config.learn, config.engine.eight_bits)
        tokens = rollouts.replicas.sampled_tokens()
        step = dataclasses.replace(step, extra=step.extra | rollouts.scheduler.take_loads())
        values = self.logger.rl_step(step, rollouts.workers, tokens, limit)
        self.untrained.note(step, values)
        self.logger.sample_trajectories(step, config.algo.mismatch)
        if config.agent.record_episodes:
            families = self.setting.schedule.families
            write_trained(self.setting.path, step.cursor.step, families, step.groups)
        self.lap(REPORT)
        self._evaluate_if_due(step.cursor)

    def lap(self, name: str) -> None:
        if self.timeline:
            self.timeline.lap(name)

    def check_stop(self) -> None:
        self.setting.stop.check()

    # Evaluations.

    def _evaluate_if_due(self, cursor: Cursor, known: Collection[str] = ()) -> None:
        """Evaluates every `eval.every` steps.

        known: names of the evaluations that are already recorded.
        """
        config, name = self.setting.config, f"step_{cursor.step}"
        every, steps = config.eval.every, config.rl.steps
        if every and 0 < cursor.step < steps and cursor.step % every == 0 and name not in known:
            self._evaluate(name, cursor)
            self.logger.progress.phase(config.algo.name, steps, cursor.step)

    def _evaluate(self, name: str, cursor: Cursor) -> None:
        config, logger, schedule = self.setting.config, self.logger, self.setting.schedule
        keys = schedule.evaluation(name, config.eval)
        logger.progress.phase(f"evaluation: {name}", len(keys), unit="episodes")

        def on_result(done: int) -> None:
            self.check_stop()
            logger.progress.update(done)

        played = self.rollouts.scheduler.evaluate(keys, config.eval_sampling, on_result)
        evaluation = tally(name, cursor.step, logger.metrics.seconds(), played, schedule)
        require_judged(evaluation, len(keys))
        episodes = schedule.families, played
        write_episodes(self.setting.path, name, cursor.step, config.eval_sampling, episodes)
        record_evaluation(self.setting.path, evaluation)
        logger.evaluation(evaluation)
        self.lap(EVALUATION)
