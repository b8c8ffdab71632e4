"""The state that a run starts with: its newest checkpoint, or the result of a warm start."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

import jax
from jax.sharding import Mesh

from ale_jax.agent.transcripts import Transcript
from ale_jax.config.architecture import PolicyShape
from ale_jax.config.run import RunConfig
from ale_jax.data.experts import Expert
from ale_jax.data.step_files import START_DIR, STEPS_DIR
from ale_jax.learn.checkpoint import Checkpoints
from ale_jax.learn.reference import REFERENCE, ScoreBatches, load_reference, save_reference
from ale_jax.model.sides import learner_mesh
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.model.weights.shape import policy_shape
from ale_jax.monitor.evaluations import EVALUATIONS_FILE, WARM_START, recorded_names
from ale_jax.monitor.events import Recorder
from ale_jax.monitor.metrics import METRICS_FILE, read_metrics
from ale_jax.sandbox.api import Runtime
from ale_jax.sandbox.datasets import Datasets
from ale_jax.sandbox.runtime import login_of, runtime_of_run
from ale_jax.sandbox.sdk.service_runtime import ServiceRuntime
from ale_jax.system.demonstrations import (
    collect_demonstrations,
    make_tokenizer,
    oracle_experts,
    tokenize,
)
from ale_jax.system.hosts.commands import Processes
from ale_jax.system.imitated import Imitated, demonstrated_samples, read_sets, texts
from ale_jax.system.preferences import Preferences, count_updates, read_pair_sets
from ale_jax.system.resampling import Resampler
from ale_jax.system.rollouts.scheduler import RolloutScheduler
from ale_jax.system.run_logger import RunLogger
from ale_jax.system.sources import given_tokenizer
from ale_jax.system.stopping import StopSignals
from ale_jax.system.task_checks import needs_sandbox
from ale_jax.system.tasks import Cursor
from ale_jax.system.teacher import check_teacher
from ale_jax.system.teacher_endpoint import TeacherEndpoint
from ale_jax.system.trainer import STATE, Trainer, TrainerFiles
from ale_jax.system.warm_start import warm_start
from ale_jax.system.workdir import Workdir
from ale_jax.worlds.schedule import Schedule


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is known of a run before it has a state.

    runtime: None if no task needs a sandbox. processes: those that train. files: of the trainer.
    """

    config: RunConfig
    workdir: Workdir
    stop: StopSignals
    processes: Processes
    mesh: Mesh
    runtime: Runtime | None
    files: TrainerFiles

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.workdir.path

    @property
    def devices(self) -> str:
        """How many there are, and for what."""
        learning, sampling = self.mesh.size, self.config.rollout.engine_devices
        if not sampling:
            return f"{learning}"
        return f"{learning} learn, {sampling * jax.process_count()} sample"

    @property
    def tokenizer_folder(self) -> Path:
        return self.path / "tokenizer"

    def policy(self, tokenizer: ChatTokenizer) -> PolicyShape:
        return policy_shape(self.config, tokenizer.vocab_size)

    def make_trainer(self, tokenizer: ChatTokenizer) -> Trainer:
        """Returns the trainer of every process, of this one."""
        policy = self.policy(tokenizer)
        if self.config.teacher.weights:
            check_teacher(self.config, self.tokenizer_folder)
        rows = self.config.learn.microbatch_rows
        self.processes.begin(tokenizer.vocab_size, self.mesh, rows)
        self.files.trainer = Trainer(self.config, policy, self.mesh, self.processes)
        return self.files.trainer

    @property
    def schedule(self) -> Schedule:
        return Schedule.of(self.config)


def make_setting(
    config: RunConfig, workdir: Workdir, stop: StopSignals, processes: Processes
) -> Setting:
    """Picks the runtime of the sandboxes, if any are needed, and makes the mesh."""
    runtime = None
    if needs_sandbox(config):
        runtime = open_runtime(config)
        runtime.reap()
        rollout = dataclasses.replace(config.rollout, runtime=runtime.name)
        config = dataclasses.replace(config, rollout=rollout)
    mesh = learner_mesh(config)
    return Setting(config, workdir, stop, processes, mesh, runtime, TrainerFiles())


def open_runtime(config: RunConfig) -> Runtime:
    """Returns what starts the sandboxes of a run. Errors: SandboxStartError; ValueError if a
    service could never have as many."""
    rollout, spec, calls = config.rollout, config.sandbox, 1
    login, datasets = login_of(rollout.runtime), Datasets.parse(rollout.datasets)
    runtime = runtime_of_run(rollout.runtime, spec, login, rollout.uplink, datasets)
    if isinstance(runtime, ServiceRuntime):
        if config.external_agent.command:
            calls += 1  # its way to the policy
        runtime.check(spec, rollout.actors * rollout.episodes_per_actor, calls)
    return runtime


@dataclasses.dataclass(frozen=True)
class Start:
    """Where reinforcement learning starts.

    trainer: with its state. oracles: the experts of all training tasks, if they have been played
    already.
    """

    tokenizer: ChatTokenizer
    trainer: Trainer
    cursor: Cursor
    oracles: Sequence[Expert] | None = None


def restore(setting: Setting, checkpoints: Checkpoints, step: int | None = None) -> Start | None:
    """Restores the newest checkpoint that is intact, or that of a step; None if the run has not
    saved any yet.

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
    trainer = setting.make_trainer(tokenizer)
    checkpoints.require_room(trainer.whole)
    found = checkpoints.restore_latest(STATE, step)
    if found is None:
        assert step is not None, "there is a complete checkpoint"
        kept = ", ".join(map(str, checkpoints.steps())) or "none"
        raise ValueError(f"the run has no checkpoint of step {step}: it has {kept}")
    step, _, host = found
    if step and WARM_START not in recorded_names(setting.path):
        raise ValueError(
            f"{setting.path / EVALUATIONS_FILE} does not hold the evaluation of the warm start, "
            "which cannot be repeated: restore it, or give --overwrite to start a new run"
        )
    cursor = Cursor.restore(host)
    assert cursor.step == step, (cursor.step, step)
    return Start(tokenizer, trainer, cursor)


def _require_no_steps(path: Path) -> None:
    """ValueError if the run has made steps, so that it had checkpoints once."""
    metrics = path / METRICS_FILE
    if metrics.exists() and any(line["phase"] == "rl" for line in read_metrics(metrics).records):
        raise ValueError(
            f"{path} holds the metrics of finished steps, but no checkpoint; nothing was changed: "
            "bring the folder checkpoints/ back, or give --overwrite to start a new run"
        )


def begin_anew(setting: Setting, checkpoints: Checkpoints, logger: RunLogger) -> Start:
    """Collects demonstrations and recorded conversations, trains a tokenizer on them, and trains
    the policy to imitate them, and then on preference pairs. ValueError if the disk has no room for
    the checkpoints to come, or what was recorded cannot be read.

    Nothing is demonstrated if the warm start has no steps and the tokenizer is given: by its path,
    or by `weights`.
    """
    config, warm, stop = setting.config, setting.config.warm_start, setting.stop
    source = config.tokenizer.path or config.weights
    domains: list[list[Transcript]] = []
    probe: list[Transcript] = []
    if config.demonstrated and (warm.max_steps or not source):
        domains, probe = collect_demonstrations(config, setting.runtime, logger.progress, stop)
    size, told = config.tokenizer.vocab_size, texts(config, domains)
    given = given_tokenizer(config)
    tokenizer = make_tokenizer(given, size, told, setting.tokenizer_folder)
    tokenizer.check_fits(setting.policy(tokenizer).vocab_size)
    trainer = setting.make_trainer(tokenizer)
    checkpoints.require_room(trainer.whole)
    oracles = None
    if config.resampling.wants_oracles:
        # Before training, so that an oracle that is too long for the context is refused early.
        oracles = play_oracles(setting, tokenizer, logger)
    if warm.max_steps:
        imitated = Imitated(
            config,
            demonstrated_samples(config, domains, tokenizer),
            read_sets(config, tokenizer, stop.check, logger.record),
            [tokenize(each, tokenizer) for each in probe],
        )
        _imitate(imitated, setting, trainer, logger)
    if config.preferences.data:
        _prefer(setting, tokenizer, trainer, logger)
    trainer.begin()
    return Start(tokenizer, trainer, Cursor.begin(config), oracles)


def _imitate(imitated: Imitated, setting: Setting, trainer: Trainer, logger: RunLogger) -> None:
    warm, shape = setting.config.warm_start, setting.config.learn
    target = warm.target_success if imitated.probed else None
    most = imitated.count_updates()
    logger.progress.phase("warm start", most, target=target)
    trainer.begin_warm_start(updates=most)
    why = warm_start(
        trainer,
        setting.stop.checked(imitated.updates()),
        imitated.measure(trainer),
        warm,
        logger.warm_start_step,
        shape.max_skipped_updates,
    )
    if warm.data:
        logger.record("warm_start_ended", why)


def _prefer(
    setting: Setting, tokenizer: ChatTokenizer, trainer: Trainer, logger: RunLogger
) -> None:
    config, stop, progress = setting.config, setting.stop, logger.progress
    sets = read_pair_sets(config, tokenizer, stop.check, logger.record)
    most = count_updates(config.preferences, sets)
    trainer.begin_preferences(updates=most)
    pairs = sum(len(each.learned) + len(each.held_out) for each in sets)
    progress.phase("reference of the preference pairs", pairs, unit="pairs")

    def on_progress(done: int) -> None:
        stop.check()
        progress.update(done)

    preferences = Preferences(config, sets, trainer, on_progress)
    progress.phase("preference pairs", most)
    updates, log = stop.checked(preferences.updates()), logger.preference_step
    why = preferences.learn(updates, log, config.learn.max_skipped_updates)
    logger.record("preferences_ended", why)


def keep_reference(setting: Setting, logger: RunLogger) -> None:
    """Stores the reference policy if the divergence from it is trained or measured, and there is no
    teacher. Later checkpoints do not contain it, as they hold later weights."""
    config = setting.config
    if config.algo.loss.reads_reference and not config.teacher.is_given:
        record, lease = logger.events.record, setting.workdir.lease
        save_reference(setting.path, REFERENCE, record, setting.files, lease)


def open_reference(
    config: RunConfig, path: Path, files: TrainerFiles, record: Recorder
) -> ScoreBatches | None:
    """Returns the teacher, if it is behind an endpoint. Another reference policy becomes the
    trainer's. path: of the run. files: of its trainer."""
    trainer = files.known
    if config.teacher.endpoint:
        return TeacherEndpoint.of(config, trainer.policy.vocab_size).scores
    if config.teacher.weights:
        trainer.open_teacher()
    elif config.algo.loss.reads_reference:
        load_reference(path, REFERENCE, record, files)
    return None


def record_start(setting: Setting, cursor: Cursor) -> None:
    """Stores the first state, from which a replay begins. Checkpoints of later steps replace
    theirs. It replaces that of an interrupted start."""
    folder = setting.path / STEPS_DIR / START_DIR
    shutil.rmtree(folder, ignore_errors=True)
    with Checkpoints(folder, 1, _ignore, setting.files, setting.workdir.lease) as start:
        start.save(cursor.step, STATE, dataclasses.asdict(cursor))


def _ignore(kind: str, detail: str, **fields: object) -> None:
    """Takes no notice of an event that every start has."""


def open_resampler(
    setting: Setting, start: Start, scheduler: RolloutScheduler, logger: RunLogger
) -> Resampler:
    """Opens the resampler of the checkpoint, or a new one, which may start with oracle experts."""
    config, state = setting.config, start.cursor.resampling
    resampler = Resampler(
        config.resampling,
        setting.schedule.train_task,
        config.rl.group_size + config.rl.redundant_members,
        config.seed,
        logger.events.record,
        state,
    )
    if state is None and config.resampling.wants_oracles:
        experts = start.oracles
        if experts is None:  # the run was restored from the checkpoint before its first step
            experts = play_oracles(setting, start.tokenizer, logger)
        sampling, on_result = config.train_sampling, lambda done: setting.stop.check()
        resampler.admit(experts, lambda checks: scheduler.play(checks, sampling, on_result))
    return resampler


def play_oracles(setting: Setting, tokenizer: ChatTokenizer, logger: RunLogger) -> Sequence[Expert]:
    """Plays the oracle on every training task. KeyboardInterrupt if the run should stop."""
    schedule, progress = setting.schedule, logger.progress
    tasks = list(map(schedule.train_task, range(schedule.train_count)))
    progress.phase("oracle experts", len(tasks), unit="episodes")

    def on_progress(done: int) -> None:
        setting.stop.check()
        progress.update(done)

    return oracle_experts(setting.config, tasks, setting.runtime, tokenizer, on_progress)
