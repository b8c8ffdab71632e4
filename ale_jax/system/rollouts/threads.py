"""Plays episodes in threads of this process, without Ray.

A debugger can step from the scheduler into an episode, and a small run starts in seconds. But a
thread cannot be killed: an episode that does not end keeps its place until it does.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import Protocol

from ale_jax.errors import RolloutsFailed
from ale_jax.monitor.events import Recorder
from ale_jax.records import Episode, EpisodeKey, Prefix
from ale_jax.rollout.play import EpisodeResult
from ale_jax.system.rollouts.pool import PoolCounts, WorkerLost

CLOSE_S = 3.0


class Worker(Protocol):
    """The part of `ale_jax.rollout.worker.RolloutWorker` that threads call."""

    def play(
        self, key: EpisodeKey, url: str, conversation: str, prefix: Prefix | None
    ) -> EpisodeResult: ...

    def cancel(self, conversation: str) -> None: ...

    def close(self) -> None: ...


class ThreadPool:
    """A `WorkerPool`: one worker, and a thread for each of its episodes."""

    def __init__(self, worker: Worker, places: int, record: Recorder):
        """places: episodes at once. record: `EventLog.record`, called for stuck threads."""
        self._worker, self._places, self._record = worker, places, record
        self._playing: set[ThreadEpisode] = set()
        # Those that have ended, or were given up; the latter come twice if they end after all.
        self._over: queue.SimpleQueue[ThreadEpisode] = queue.SimpleQueue()
        self._begun = 0
        self.counts = PoolCounts(0, 0)

    @property
    def free(self) -> int:
        return self._places - len(self._playing)

    def play(
        self, key: EpisodeKey, url: str, conversation: str, prefix: Prefix | None
    ) -> ThreadEpisode:
        assert self.free > 0, "every place is taken"
        self._begun += 1
        episode = ThreadEpisode(self, f"episode-{self._begun}", key, conversation)
        self._playing.add(episode)
        episode.thread = threading.Thread(
            target=self._run,
            args=(episode, url, prefix),
            name=episode.name,
            daemon=True,  # a stuck one does not hold back the end of the process
        )
        episode.thread.start()
        return episode

    def finished(self, timeout: float) -> list[ThreadEpisode]:
        over: list[ThreadEpisode] = []
        try:
            over.append(self._over.get(timeout=timeout))
            while True:
                over.append(self._over.get_nowait())
        except queue.Empty:
            pass
        found = []
        for episode in over:
            if episode.outcome is not None:
                self._playing.discard(episode)
            if not episode.is_delivered:
                episode.is_delivered = True
                found.append(episode)
        return found

    def check(self) -> None:
        if len(self._playing) == self._places and all(each.is_stuck for each in self._playing):
            raise RolloutsFailed(
                f"all {self._places} places are taken by threads that are stuck in their episodes "
                "and cannot be killed: set rollout.workers to ray, whose actors can be, and the "
                "same command continues"
            )

    def waiting_for(self) -> str:
        return ""

    def close(self) -> None:
        """Threads that are still in their episodes CLOSE_S later are left behind."""
        self._worker.close()
        deadline = time.monotonic() + CLOSE_S
        for episode in self._playing:
            assert episode.thread is not None, "`play` gives each episode a thread"
            episode.thread.join(max(deadline - time.monotonic(), 0.0))

    def cancel(self, episode: ThreadEpisode) -> None:
        # In a thread of its own, as it may take long to close a sandbox.
        threading.Thread(
            target=self._worker.cancel, args=(episode.conversation,), daemon=True
        ).start()

    def give_up(self, episode: ThreadEpisode, reason: str) -> None:
        if episode.is_stuck or episode.outcome is not None:
            return
        episode.is_stuck = True
        detail = f"thread {episode.name} keeps its place until its episode ends: {reason}"
        task = episode.key.task
        self._record("thread_stuck", detail, family=task.family, item=task.item)
        self._over.put(episode)

    def note(self, played: EpisodeResult) -> None:
        self.counts = PoolCounts(played.sandboxes_up, played.sandboxes_restarted)

    def _run(self, episode: ThreadEpisode, url: str, prefix: Prefix | None) -> None:
        try:
            episode.outcome = self._worker.play(episode.key, url, episode.conversation, prefix)
        except BaseException as error:  # it is raised where the result is asked for
            episode.outcome = error
        self._over.put(episode)


class ThreadEpisode:
    """A `Playing`. outcome: what its thread has returned or raised; None until then."""

    def __init__(self, pool: ThreadPool, name: str, key: EpisodeKey, conversation: str):
        self.name, self.key, self.conversation = name, key, conversation
        self.where = f"in thread {name}"
        self.thread: threading.Thread | None = None
        self.outcome: EpisodeResult | BaseException | None = None
        self.is_stuck = self.is_delivered = False
        self._pool = pool

    def cancel(self) -> None:
        self._pool.cancel(self)

    def give_up(self, reason: str) -> None:
        self._pool.give_up(self, reason)

    def result(self) -> Episode:
        outcome = self.outcome
        if outcome is None or self.is_stuck:
            raise WorkerLost(f"its thread, {self.name}, is stuck")
        if isinstance(outcome, BaseException):
            raise outcome
        self._pool.note(outcome)
        return outcome.episode
