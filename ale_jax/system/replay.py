"""Trains again from what a run has recorded of each step, without engine or sandboxes.

It is the run's own train loop, with another feed of groups: those that were trained on, in their
order. So the weights are the same to the last bit after every step, however asynchronous the run
was, on the same hardware and software.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ale_jax.config.run import RunConfig
from ale_jax.data.replay import DroppedGroup, Group
from ale_jax.data.step_files import START_DIR, STEPS_DIR, read_step, recorded_steps
from ale_jax.learn.checkpoint import Checkpoints
from ale_jax.model.sides import learner_mesh
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.model.weights.shape import policy_shape
from ale_jax.monitor.schedule import SCHEDULE_FILE, read_schedule
from ale_jax.records import RolloutRequest, Task, Trajectory
from ale_jax.system.compilation import keep_compiled
from ale_jax.system.group_feed import Snapshot
from ale_jax.system.resampling import Resampler
from ale_jax.system.start import open_reference
from ale_jax.system.step_metrics import StepReport
from ale_jax.system.tasks import Cursor
from ale_jax.system.train_loop import train_loop
from ale_jax.system.trainer import STATE, Trainer, TrainerFiles


@dataclasses.dataclass(frozen=True)
class ReplayedStep:
    """A step that was made again. recorded: the digest of the weights after it in the run; empty if
    the run was interrupted before it wrote that down."""

    report: StepReport
    recorded: str

    @property
    def is_same(self) -> bool:
        """Whether the weights after the step are those of the run."""
        return self.report.weights == self.recorded


def replay(config: RunConfig, run: Path, on_step: Callable[[ReplayedStep], None]) -> None:
    """Makes the steps that the run in the folder `run` has recorded, and calls `on_step` after
    each. config: of the run, or one that learns in another way.

    Raises:
      ValueError: the run has recorded no steps, or a file is damaged.
    """
    steps = recorded_steps(run / STEPS_DIR)
    if not steps:
        raise ValueError(f"{run / STEPS_DIR} has no steps: only runs with rl.record_steps do")
    keep_compiled(config.compilation_cache)
    files = TrainerFiles()
    try:
        trainer = files.trainer = _trainer(config, run)
        cursor = _first_state(run / STEPS_DIR / START_DIR, files)
        learner = trainer.make_learner(open_reference(config, run, files, _ignore))
        resampler = Resampler(config.resampling, _no_task, 1, config.seed, _ignore)
        # The trainer has the schedules of the whole run, of which these steps may be the beginning.
        made = dataclasses.replace(config, rl=dataclasses.replace(config.rl, steps=steps))
        feed, again = RecordedFeed(run / STEPS_DIR), _Replayed(trainer, _digests(run), on_step)
        train_loop(cursor, made, learner, feed, resampler, again)
    finally:
        files.close()


def _trainer(config: RunConfig, run: Path) -> Trainer:
    tokenizer = ChatTokenizer.load(run / "tokenizer")
    return Trainer(config, policy_shape(config, tokenizer.vocab_size), learner_mesh(config))


def _first_state(folder: Path, files: TrainerFiles) -> Cursor:
    with Checkpoints(folder, 1, _ignore, files) as start:
        found = start.restore_latest(STATE)
    if found is None:
        raise ValueError(f"{folder} is missing, and with it the state that the run began with")
    return Cursor.restore(found[2])


def _digests(run: Path) -> Mapping[int, str]:
    path = run / SCHEDULE_FILE
    steps = read_schedule(path).records if path.exists() else ()
    return {each.step: each.weights for each in steps}


@dataclasses.dataclass
class RecordedFeed:
    """The groups in a folder of steps, as a `Feed`. step: that of the groups that were taken
    last."""

    folder: Path
    step: int = 0
    _used: set[int] = dataclasses.field(default_factory=set)

    def take(self, check_stop: Callable[[], None]) -> list[Group]:
        """Reads the groups of the next step. Errors: as `read_step`."""
        self.step += 1
        groups = read_step(self.folder, self.step, self._used)
        self._used |= {group.index for group in groups}
        return groups

    def held(self) -> list[Trajectory]:
        """Returns nothing: what waited for a later step is read with that."""
        return []

    def sizes(self) -> dict[str, int]:
        """Returns nothing: nobody waits."""
        return {}

    def replay(self, requests: Sequence[RolloutRequest]) -> list[Trajectory]:
        """Is not called, as a config with resampling records no steps."""
        raise AssertionError(requests)

    def publish(self, version: int) -> None:
        """Does nothing: the next groups are known."""

    def take_dropped(self) -> tuple[DroppedGroup, ...]:
        """Returns nothing: what was dropped was not trained on."""
        return ()

    def position_after(self, cursor: Cursor, groups: Sequence[Group]) -> tuple[Cursor, Snapshot]:
        """Returns the cursor after an update on `groups`, for a checkpoint that is not made."""
        return cursor.after(groups), dict

    def end(self) -> None:
        """Does nothing: no file is open."""


@dataclasses.dataclass(frozen=True)
class _Replayed:
    """The `TrainedRun` of a replay, which writes nothing and has no engine."""

    trainer: Trainer
    digests: Mapping[int, str]
    on_step: Callable[[ReplayedStep], None]

    def keep(self, step: int, groups: Sequence[Group]) -> None:
        pass

    def save(self, cursor: Cursor, resampling: Snapshot) -> None:
        pass

    def publish(self, version: int) -> float | None:
        return None

    def report(self, step: StepReport) -> None:
        step = dataclasses.replace(step, weights=self.trainer.digest())
        self.on_step(ReplayedStep(step, self.digests.get(step.cursor.step, "")))

    def lap(self, name: str) -> None:
        pass

    def check_stop(self) -> None:
        pass


def _no_task(index: int) -> Task:
    raise AssertionError(f"nobody is to play group {index}")


def _ignore(kind: str, detail: str, **fields: object) -> None:
    """Stands for the log of the run, which a replay does not continue."""
