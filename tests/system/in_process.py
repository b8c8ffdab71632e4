"""The real train loop in one process: scheduler, gate, replay, ledger, engine and learner.

The episodes are played in threads, and the world is a word game that needs no sandbox. So a run of
many steps takes seconds.
"""

from __future__ import annotations

import dataclasses
import string
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ale_jax.config.agent import AgentLimits
from ale_jax.configs import smoke
from ale_jax.data.journal import Journal
from ale_jax.gateway.custody.ledger import Ledger
from ale_jax.model.sides import learner_mesh
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from ale_jax.model.weights.shape import policy_shape
from ale_jax.records import EpisodeKey, RolloutRequest, Task
from ale_jax.rollout.play import EpisodeRunner
from ale_jax.system.checks import checked_config
from ale_jax.system.group_feed import GroupFeed
from ale_jax.system.hosts.commands import Alone
from ale_jax.system.rollouts.policy_replicas import PolicyReplica, PolicyReplicas
from ale_jax.system.rollouts.scheduler import RolloutScheduler
from ale_jax.system.rollouts.threads import ThreadPool
from ale_jax.system.rollouts.workers import RolloutWorkers
from ale_jax.system.tasks import Cursor
from ale_jax.system.train_loop import train_loop
from ale_jax.system.trainer import Trainer
from ale_jax.worlds.api import Step, World
from ale_jax.worlds.checked import CheckedWorld
from ale_jax.worlds.items import Item
from tests.gateway.custody.talking import Agent, same_for_all
from tests.model.meshes import mesh_of

ALONE = Alone()
TURNS = 2
PLACES = 8


class Capitals(World):
    """Two turns; the reward is the share of replies that begin with a capital letter."""

    system_prompt = "Begin with a capital."
    role = "tool"

    def reset(self, item, sandbox):
        self._right = []
        return f"Say something, {item.seed}."

    def step(self, reply):
        self._right.append(reply[:1].isascii() and reply[:1].isupper())
        ends = len(self._right) == TURNS
        return Step("And again.", sum(self._right) / TURNS if ends else 0.0, ends)

    def grade(self, answer=None):
        raise AssertionError("the second turn ends every episode")


class GameWorker:
    """A rollout worker whose policy is at hand, and whose world needs no sandbox."""

    def __init__(self, ledger, game):
        self._runner = EpisodeRunner(None, self, AgentLimits(turns=TURNS))
        self._ledger, self._game = ledger, game

    def sandbox(self, task):
        return None

    def turns(self, task):
        return TURNS

    def open(self, task, sandbox):
        return CheckedWorld(self._game.world(), Item(task.family, task.item, task.split), sandbox)

    def play(self, key, url, conversation, prefix):
        policy = self._game.conversation(self._ledger, conversation)
        return self._runner.play(key, policy, prefix, attempt=conversation)

    def cancel(self, conversation):
        self._runner.cancel(conversation)

    def close(self):
        self._runner.close()


class Game(NamedTuple):
    """world: makes the world. conversation: (ledger, its name) -> the policy's side."""

    world: Callable
    conversation: Callable


CAPITALS = Game(Capitals, Agent)


class FromTheStart:
    """In place of the resampler: every group begins its task at the beginning."""

    def __init__(self, group_size):
        self._members = range(group_size)

    def assign(self, group):
        task = Task("capitals", group, "train")
        return [
            RolloutRequest(EpisodeKey("train", group, member, task)) for member in self._members
        ]

    def note(self, trajectory):
        pass

    def imitation(self, groups, gamma):
        return []

    def learn(self, groups, version, replay):
        pass

    def figures(self, groups, version):
        return {}

    def forget(self, groups):
        pass

    def snapshot(self, groups):
        return lambda: None


@dataclasses.dataclass
class Callbacks:
    """What the train loop asks of a run."""

    publish: Callable
    report: Callable
    save: Callable
    dropped: list = dataclasses.field(default_factory=list)

    def note_dropped(self, group, task):
        self.dropped.append((group, task))

    def lap(self, name):
        pass

    def check_stop(self):
        pass

    def keep(self, step, groups):
        pass


def _save_nothing(cursor, resampling):
    pass


def train(steps, algorithm="ipa", game=CAPITALS, **sections):
    """Trains a small mixture of experts from random weights; (its weights before, its state after,
    step reports)."""
    with tempfile.TemporaryDirectory() as folder, Journal(Path(folder), _no_events) as journal:
        run = Run(run_config(steps, algorithm, **sections), game=game)
        before, reports = run.trainer.state.params, []

        def keep(report):
            updates = report.made.read_updates()
            made = dataclasses.replace(report.made, read_updates=lambda: updates)
            reports.append(dataclasses.replace(report, made=made))

        run.train(Cursor(), journal, keep, _save_nothing)
        return before, run.trainer.state, reports


def _no_events(kind, detail, **fields):
    raise AssertionError((kind, detail))


def run_config(steps, algorithm="ipa", **sections):
    changes = smoke.get_config(algorithm)
    changes.rl.update(steps=steps, groups_per_step=4, group_size=8)
    changes.engine.update(max_sequences=PLACES, max_sequence_length=128, pages=PLACES * 8)
    changes.rollout.max_reply_tokens = 3
    for name, fields in sections.items():
        changes[name].update(fields)
    return checked_config(changes.to_dict())


class Run:
    """The parts of a run that are there before it trains, and their training."""

    def __init__(self, config, processes=ALONE, game=CAPITALS):
        self.config, self._game = config, game
        words = [Capitals.system_prompt, "Say something, 0123456789.", "And again."]
        messages = [{"role": "user", "content": text} for text in [*words, string.printable]]
        self.tokenizer = ChatTokenizer(train_bpe(messages, config.tokenizer.vocab_size))
        shape = policy_shape(config, self.tokenizer.vocab_size)
        # Of one device, unless more are asked for, as all of them would only compute the same more
        # slowly. Several processes need those of each.
        alone = processes is ALONE and not config.rollout.engine_devices
        mesh = mesh_of(data=max(config.mesh.data, 1)) if alone else learner_mesh(config)
        processes.begin(self.tokenizer.vocab_size, mesh, config.learn.microbatch_rows)
        self.trainer = Trainer(config, shape, mesh, processes)
        self.trainer.begin()

    def train(self, cursor, journal, report, save):
        """Trains from the state at `cursor` to the last step."""
        config, trainer, stop_ids = self.config, self.trainer, self.tokenizer.stop_ids
        trainer.publish(version=cursor.step)
        engine = trainer.open_engines(stop_ids)
        limits = same_for_all(config.rollout.max_reply_tokens)
        ledger = Ledger(engine, self.tokenizer, config.seed, limits)
        pool = ThreadPool(GameWorker(ledger, self._game), PLACES, _no_events)
        replicas = PolicyReplicas([PolicyReplica(ledger, "", lambda: engine.stats.sampled_tokens)])
        retries, deadlines = config.rollout.retries, config.deadlines
        with (
            closing(engine),
            RolloutWorkers(pool, replicas, deadlines, retries, _no_events) as workers,
            RolloutScheduler(workers, engine.check) as scheduler,
        ):
            resampler = FromTheStart(config.rl.group_size)
            run = Callbacks(lambda version: trainer.publish(version=version), report, save)
            learner = trainer.make_learner()
            feed = GroupFeed(config, cursor, scheduler, resampler, journal, run.note_dropped)
            train_loop(cursor, config, learner, feed, resampler, run)


def mean_reward(report):
    return float(np.mean([t.episode.reward for t in report.trajectories]))
