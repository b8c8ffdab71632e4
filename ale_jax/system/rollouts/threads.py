"""Plays and judges episodes in threads of this process, without Ray.

A debugger can step from the scheduler into an episode, and a small run starts in seconds. But a
thread cannot be killed: an episode that does not end keeps its place until it does.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol

from ale_jax.errors import RolloutsFailed
from ale_jax.monitor.events import Recorder
from ale_jax.records import Episode, EpisodeKey, Prefix
from ale_jax.rollout.play import EpisodeResult
from ale_jax.system.rollouts.pool import AttemptStage, Load, PoolCounts, WorkerLost
from ale_jax.system.rollouts.reward_workers import RewardWorkers

CLOSE_S = 3.0


class Worker(Protocol):
    """The part of `ale_jax.rollout.worker.RolloutWorker` that threads call."""

    def play(
        self, key: EpisodeKey, url: str, conversation: str, prefix: Prefix | None
    ) -> EpisodeResult: ...

    def judge(self, conversation: str) -> EpisodeResult: ...

    def cancel(self, conversation: str) -> None: ...

    def close(self) -> None: ...


class ThreadPool:
    """A `WorkerPool`: one worker, and a thread for each of its episodes and verdicts."""

    def __init__(self, worker: Worker, places: int, record: Recorder, reward_workers: int = 0):
        """places: episodes at once. record: `EventLog.record`, called for stuck threads.
        reward_workers: verdicts at once, of episodes that the worker has not judged."""
        self._worker, self._places, self._record = worker, places, record
        self._playing: set[ThreadEpisode] = set()
        self._judges = RewardWorkers[ThreadEpisode](reward_workers)
        # Those whose thread has ended, and those that were cancelled or given up without that.
        self._changed: queue.SimpleQueue[ThreadEpisode] = queue.SimpleQueue()
        self._begun = 0
        self.counts = PoolCounts(0, 0)

    @property
    def free(self) -> int:
        return self._places - len(self._playing)

    @property
    def judges(self) -> Load:
        return self._judges.load

    def play(
        self, key: EpisodeKey, url: str, conversation: str, prefix: Prefix | None
    ) -> ThreadEpisode:
        assert self.free > 0, "every place is taken"
        self._begun += 1
        episode = ThreadEpisode(self, f"episode-{self._begun}", key, conversation)
        self._playing.add(episode)
        self._start(episode, lambda: self._worker.play(key, url, conversation, prefix))
        return episode

    def moved(self, timeout: float) -> list[ThreadEpisode]:
        moved = self._begin_verdicts()  # of those that are judged again
        taken = self._take(0.0 if moved else timeout)
        moved += [episode for episode in taken if self._has_moved(episode)]
        return list(dict.fromkeys(moved + self._begin_verdicts()))

    def _begin_verdicts(self) -> list[ThreadEpisode]:
        begun = list(self._judges.begin())
        for episode in begun:
            episode.stage = AttemptStage.JUDGED
            self._start(episode, functools.partial(self._worker.judge, episode.conversation))
        return begun

    def _take(self, timeout: float) -> list[ThreadEpisode]:
        taken: list[ThreadEpisode] = []
        try:
            taken.append(self._changed.get(timeout=timeout))
            while True:
                taken.append(self._changed.get_nowait())
        except queue.Empty:
            return taken

    def _has_moved(self, episode: ThreadEpisode) -> bool:
        """Takes a changed episode to its next stage, if it was not over yet."""
        outcome = episode.outcome
        if outcome is not None:
            self._playing.discard(episode)
            self._judges.leave(episode)
        before, episode.stage = episode.stage, AttemptStage.OVER
        if isinstance(outcome, EpisodeResult) and not outcome.is_judged:
            self.note(outcome)
            if episode.is_cancelled or episode.is_stuck:
                self._worker.cancel(episode.conversation)
            elif before is AttemptStage.JUDGED:
                episode.stage = AttemptStage.UNJUDGED
            else:
                self.queue(episode)
        return before is not AttemptStage.OVER  # else a stuck one has ended after all

    def queue(self, episode: ThreadEpisode) -> None:
        """Lets an episode wait for a reward worker."""
        episode.stage, episode.outcome = AttemptStage.QUEUED, None
        self._judges.put(episode)

    def check(self) -> None:
        for what, number, taken in (
            ("places", self._places, self._playing),
            ("reward workers", self.judges.size, self._judges.judged),
        ):
            if number and len(taken) == number and all(each.is_stuck for each in taken):
                raise RolloutsFailed(
                    f"all {number} {what} are taken by threads that are stuck in their episodes "
                    "and cannot be killed: set rollout.workers to ray, whose actors can be, and "
                    "the same command continues"
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
        """A verdict that is being made goes on, as it holds no sandbox; its result is not read."""
        episode.is_cancelled = True
        if episode.stage is AttemptStage.JUDGED:
            return
        if episode.stage is AttemptStage.UNJUDGED:
            episode.stage = AttemptStage.OVER
        if episode.stage is AttemptStage.QUEUED:
            self._judges.leave(episode)
            self._changed.put(episode)
        # In a thread of its own, as it may take long to close a sandbox.
        threading.Thread(
            target=self._worker.cancel, args=(episode.conversation,), daemon=True
        ).start()

    def give_up(self, episode: ThreadEpisode, reason: str) -> None:
        if episode.is_stuck or episode.outcome is not None:
            return
        episode.is_stuck = True
        held = "reward worker" if episode.stage is AttemptStage.JUDGED else "place"
        detail = f"thread {episode.name} keeps its {held} until its episode ends: {reason}"
        task = episode.key.task
        self._record("thread_stuck", detail, family=task.family, item=task.item)
        self._changed.put(episode)

    def note(self, played: EpisodeResult) -> None:
        self.counts = PoolCounts(played.sandboxes_up, played.sandboxes_restarted)

    def _start(self, episode: ThreadEpisode, call: Callable[[], EpisodeResult]) -> None:
        episode.thread = threading.Thread(
            target=self._run,
            args=(episode, call),
            name=episode.name,
            daemon=True,  # a stuck one does not hold back the end of the process
        )
        episode.thread.start()

    def _run(self, episode: ThreadEpisode, call: Callable[[], EpisodeResult]) -> None:
        try:
            episode.outcome = call()
        except BaseException as error:  # it is raised where the result is asked for
            episode.outcome = error
        self._changed.put(episode)


class ThreadEpisode:
    """A `Playing`. outcome: what its thread has returned or raised; None until then."""

    def __init__(self, pool: ThreadPool, name: str, key: EpisodeKey, conversation: str):
        self.name, self.key, self.conversation = name, key, conversation
        self.where = f"in thread {name}"
        self.stage = AttemptStage.PLAYED
        self.thread: threading.Thread | None = None
        self.outcome: EpisodeResult | BaseException | None = None
        self.is_stuck = self.is_cancelled = False
        self._pool = pool

    def cancel(self) -> None:
        self._pool.cancel(self)

    def judge_again(self) -> None:
        self._pool.queue(self)

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
