"""An engine that says what it is told to, as slowly as it is told to, and episodes of it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np

from ale_jax.config.engine import Sampling
from ale_jax.engine.request import DEFAULT_OPTIONS, RequestOptions, Sampled
from ale_jax.errors import RolloutsFailed
from ale_jax.gateway.custody.ledger import Ledger, ReplyLimits
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.records import Episode, EpisodeKey, Task, Trajectory
from ale_jax.status import Status
from benchmarks.gateway.ids import trained

STEP_S = 0.1  # between two dispatches
KEY = EpisodeKey("train", 0, 0, Task("count", 3, "train"))
NAME = "an episode"  # by which its client calls it


class TimedEngine:
    """written: the ids of each reply that was written to its end, by its number. Thread-safe, as
    each reply has a thread of its own."""

    max_sequence_length, version, vocab_size = 1 << 16, 0, 1 << 16
    stats = SimpleNamespace(sampled_tokens=0)

    def __init__(self, tokenizer: ChatTokenizer, say: Callable[[int], tuple[str, float]]):
        """say: the text of the reply with this number, and the seconds that it takes."""
        self._tokenizer, self._say = tokenizer, say
        self._conversations, self._replies = itertools.count(), itertools.count()
        self._ended: set[int] = set()
        self.written: dict[int, np.ndarray] = {}

    def open(self, adapter: int = 0) -> int:
        return next(self._conversations)

    def end(self, conversation: int) -> None:
        self._ended.add(conversation)

    def reply(
        self,
        conversation: int,
        new_ids: np.ndarray,
        max_tokens: int,
        sampling: Sampling,
        key: np.ndarray,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> Future[Sampled]:
        future: Future[Sampled] = Future()
        told = (conversation, next(self._replies), options, future)
        threading.Thread(target=self._write, args=told, daemon=True).start()
        return future

    def _write(
        self, conversation: int, number: int, options: RequestOptions, future: Future[Sampled]
    ) -> None:
        text, seconds = self._say(number)
        ids = self._tokenizer.reply_ids(text)
        steps = round(seconds / STEP_S)
        for step in range(1, steps + 1):
            time.sleep(STEP_S)
            if conversation in self._ended:
                future.set_exception(RolloutsFailed("the conversation has ended"))
                return
            if options.stop_checker is not None:
                options.stop_checker(ids[: len(ids) * step // steps])
        self.written[number] = ids
        logp, version = np.full(len(ids), -1.0, np.float32), np.zeros(len(ids), np.int32)
        future.set_result(Sampled(ids, logp, logp, version, "stop"))


class Training:
    """One episode as training has it, which an agent's program plays over HTTP as NAME."""

    def __init__(self, tokenizer: ChatTokenizer, say: Callable[[int], tuple[str, float]]):
        self.engine = TimedEngine(tokenizer, say)
        limits = ReplyLimits(tokens=1 << 14)
        self.ledger = Ledger(self.engine, tokenizer, seed=0, limits=lambda task: limits)
        self.ledger.open(NAME, KEY, Sampling())

    def end(self) -> Trajectory:
        played = Episode(KEY, Status.FINISHED, 1.0, 0, 0, 1.0, 0.0, cut_replies=None)
        trajectory = self.ledger.close(NAME, played)
        assert trajectory is not None, "it has an episode"
        return trajectory


def is_trained_on(trajectory: Trajectory, ids: np.ndarray) -> bool:
    """Whether a reply with these ids, and the whole episode, count in training."""
    found = [each for _, each, _ in trained(trajectory)]
    wanted = np.asarray(ids, np.int32).tobytes()
    return trajectory.episode.status is Status.FINISHED and found.count(wanted) == 1
