"""The real train loop in one process: scheduler, gate, replay, ledger, engine and learner.

Only the rollout workers are threads here instead of Ray actors, and the world is a word game that
needs no sandbox. So a run of many steps takes seconds.
"""

from __future__ import annotations

import dataclasses
import itertools
import queue
import string
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import jax
import numpy as np

from ale_jax.agent.loop import AgentLimits
from ale_jax.data.staleness import StalenessGate
from ale_jax.learn.learner import Learner, LearnerOptions
from ale_jax.learn.state import init_state, make_optimizer
from ale_jax.learn.step import ModelSpec
from ale_jax.model.sharding import make_mesh
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from ale_jax.records import EpisodeKey, RolloutRequest, Task
from ale_jax.rollout.engine import Engine
from ale_jax.rollout.ledger import Ledger
from ale_jax.rollout.play import EpisodeRunner
from ale_jax.system.actors.rollout_scheduler import RolloutScheduler
from ale_jax.system.build_config import build_config
from ale_jax.system.tasks import Cursor
from ale_jax.system.train_loop import TrainParts, train_loop
from configs import smoke

TURNS = 2
PLACES = 8


class Capitals:
    """Two turns; the reward is the share of replies that begin with a capital letter."""

    system_prompt = "Begin with a capital."

    def reset(self, seed):
        self._right = []
        return f"Say something, {seed}.", {}

    def step(self, action):
        self._right.append(action[:1].isascii() and action[:1].isupper())
        ends = len(self._right) == TURNS
        reward = sum(self._right) / TURNS if ends else 0.0
        return "And again.", reward, ends, False, {"malformed": False, "failed": False}

    def grade(self):
        raise AssertionError("the second turn ends every episode")


class ThreadWorkers:
    """`RolloutWorkers` as the scheduler uses them, on threads of this process."""

    def __init__(self, ledger):
        runner = EpisodeRunner(
            None, lambda task, sandbox: Capitals(), lambda task: False, AgentLimits(turns=TURNS)
        )
        self._runner, self._ledger = runner, ledger
        self._pool = ThreadPoolExecutor(PLACES)
        self._names, self._results = itertools.count(), queue.Queue()
        self._busy = 0

    @property
    def free_places(self):
        return PLACES - self._busy

    def submit(self, request, sampling):
        self._busy += 1
        name = str(next(self._names))
        self._ledger.open(name, request.key, sampling)
        future = self._pool.submit(self._play, name, request)
        future.add_done_callback(self._results.put)

    def next_result(self, timeout):
        try:
            trajectory = self._results.get(timeout=timeout).result()
        except queue.Empty:
            return None
        self._busy -= 1
        return trajectory

    def close(self):
        self._pool.shutdown()

    def _play(self, name, request):
        episode = self._runner.play(request.key, _Conversation(self._ledger, name)).episode
        return self._ledger.close(name, episode)


@dataclasses.dataclass
class _Conversation:
    ledger: Ledger
    name: str

    def reply(self, new_messages):
        return self.ledger.reply(self.name, new_messages)


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
    """What the train loop asks of a run that saves nothing."""

    publish: Callable
    report: Callable

    def save(self, state, cursor, resampling):
        pass

    def check_stop(self):
        pass


def train(steps, algorithm="ipa", **sections):
    """Trains a small mixture of experts from random weights; (its weights before, its state after,
    step reports)."""
    changes = smoke.get_config(algorithm)
    changes.rl.update(steps=steps, groups_per_step=4, group_size=8)
    changes.engine.update(max_sequences=PLACES, max_sequence_length=128, pages=PLACES * 8)
    changes.rollout.max_reply_tokens = 3
    for name, fields in sections.items():
        changes[name].update(fields)
    config = build_config(changes.to_dict())
    words = [Capitals.system_prompt, "Say something, 0123456789.", "And again.", string.printable]
    messages = [{"role": "user", "content": text} for text in words]
    tokenizer = ChatTokenizer(train_bpe(messages, config.tokenizer.vocab_size))
    model = ModelSpec(config.policy_shape(tokenizer.vocab_size), make_mesh(config.mesh))
    optimizer = make_optimizer(config.rl_optimizer, model.shape)
    state = init_state(jax.random.key(config.seed), model.shape, optimizer, model.mesh)
    before = state.params
    max_age = StalenessGate(config.rl.alpha, config.rl.groups_per_step).max_age
    options = LearnerOptions(
        config.algo, config.attention_credit, config.learn.shape, max_age, config.seed
    )
    engine = Engine(model.shape, config.engine, tokenizer.stop_ids, state.params)
    workers = ThreadWorkers(Ledger(engine, tokenizer, config.seed, config.rollout.max_reply_tokens))
    reports = []
    with closing(engine), closing(workers), RolloutScheduler(workers, engine.check) as scheduler:
        parts = TrainParts(
            config,
            Learner(options, model, optimizer),
            scheduler,
            FromTheStart(config.rl.group_size),
            Callbacks(engine.publish, reports.append),
        )
        state, _ = train_loop(state, Cursor(), parts)
    return before, state, reports


def mean_reward(report):
    return float(np.mean([t.episode.reward for t in report.trajectories]))
