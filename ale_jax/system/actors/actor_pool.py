"""Plays episodes on Ray actors: which of them play, and which wait for a node."""

from __future__ import annotations

import time

import ray
from ray.exceptions import RayTaskError

from ale_jax.config.rollout import RolloutConfig
from ale_jax.errors import RolloutsFailed
from ale_jax.monitor.events import Recorder
from ale_jax.records import Episode, EpisodeKey, Prefix
from ale_jax.rollout.play import EpisodeResult
from ale_jax.rollout.worker import WorkerSpec
from ale_jax.system.actors.cluster import alive_nodes, answers, raylet_of
from ale_jax.system.actors.code_version import differing, own_code
from ale_jax.system.actors.role import Role, shortage
from ale_jax.system.actors.rollout_actor import ACTOR_LOST, RolloutActor, WorkerHandle
from ale_jax.system.rollouts.pool import AttemptStage, Load, PoolCounts, WorkerLost

CLOSE_S = 3.0


class ActorPool:
    """A `WorkerPool`: keeps `rollout.actors` actors, on whatever nodes the cluster has.

    An actor is given episodes from its birth on, which is when a node has room for it. So the
    actors that there are go on while others wait for a node: at the start of the run, or after
    theirs has left. Each episode has one answer, so a dead actor's episodes end one by one.

    births: the answers by which actors say that they are up, and whose they are.
    """

    def __init__(
        self, rollout: RolloutConfig, spec: WorkerSpec, placement_seconds: float, record: Recorder
    ):
        """record: `EventLog.record`, called for started, lost and unplaced actors."""
        places, judges = rollout.episodes_per_actor, rollout.reward_workers
        # One thread more than it plays and judges, so that other calls are answered at any time.
        threads = places + judges + 1
        self._role = Role(
            "rollout worker", RolloutActor, rollout.actors, threads, rollout.placement
        )
        self._placement_seconds, self._record = placement_seconds, record
        self.workers = [
            WorkerHandle(number, self._role, spec, places, judges)
            for number in range(self._role.count)
        ]
        self.births: dict[ray.ObjectRef, WorkerHandle] = {
            worker.birth: worker for worker in self.workers
        }
        self._called: dict[ray.ObjectRef, ActorEpisode] = {}
        self._unqueued: list[ActorEpisode] = []  # cancelled before their verdicts were begun
        self._raylets: dict[str, tuple[str, int]] = {}  # of the nodes that actors were up on
        self._nodes_left: set[str] = set()

    @property
    def free(self) -> int:
        """Number of episodes that can begin."""
        return sum(worker.free for worker in self.workers)

    @property
    def judges(self) -> Load:
        return Load(*map(sum, zip(*(worker.judges.load for worker in self.workers), strict=True)))

    @property
    def counts(self) -> PoolCounts:
        return PoolCounts(
            sum(worker.sandboxes_up for worker in self.workers),
            sum(worker.sandboxes_restarted for worker in self.workers),
        )

    def play(
        self, key: EpisodeKey, url: str, conversation: str, prefix: Prefix | None
    ) -> ActorEpisode:
        worker = max(self.workers, key=lambda worker: worker.free)
        episode = ActorEpisode(self, worker, conversation)
        worker.busy += 1
        self._called[worker.play(key, url, conversation, prefix)] = episode
        return episode

    def moved(self, timeout: float) -> list[ActorEpisode]:
        moved = dict.fromkeys(self._unqueued + self._begin_verdicts())
        self._unqueued.clear()
        for answer in self._answers(0.0 if moved else timeout):
            if answer in self._called:
                episode = self._called.pop(answer)
                self._move(episode, answer)
                moved[episode] = None
            elif answer in self.births:  # else of an actor that was replaced since
                self.welcome(answer)
        return list(moved | dict.fromkeys(self._begin_verdicts()))

    def _move(self, episode: ActorEpisode, answer: ray.ObjectRef) -> None:
        """Takes an episode whose call was answered to its next stage."""
        worker = episode.worker
        if episode.stage is AttemptStage.PLAYED:
            worker.busy -= 1
        worker.judges.leave(episode)
        before, episode.stage = episode.stage, AttemptStage.OVER
        if not episode.read(answer):
            if episode.is_cancelled:
                worker.cancel(episode.conversation)
            elif before is AttemptStage.JUDGED:
                episode.stage = AttemptStage.UNJUDGED
            else:
                episode.queue()

    def _begin_verdicts(self) -> list[ActorEpisode]:
        begun = [episode for worker in self.workers for episode in worker.judges.begin()]
        for episode in begun:
            self._begin_verdict(episode)
        return begun

    def _begin_verdict(self, episode: ActorEpisode) -> None:
        worker = episode.worker
        if episode.is_of_its_actor:
            episode.stage = AttemptStage.JUDGED
            self._called[worker.judge(episode.conversation)] = episode
        else:
            worker.judges.leave(episode)
            episode.lose("its actor was lost before its verdict")

    def unqueue(self, episode: ActorEpisode) -> None:
        """Ends an episode that waits for its verdict."""
        episode.worker.judges.leave(episode)
        episode.lose("it was cancelled")
        self._unqueued.append(episode)

    def _answers(self, timeout: float) -> list[ray.ObjectRef]:
        """All answers that have come, as soon as there is one; none after `timeout` seconds."""
        awaited = [*self.births, *self._called]
        if not awaited:
            time.sleep(timeout)
            return []
        ready, _ = ray.wait(awaited, timeout=timeout)
        if ready:
            ready, _ = ray.wait(awaited, num_returns=len(awaited), timeout=0)
        return ready

    def waiting_for(self) -> str:
        """Returns which actors are waited for, in words; empty if all are up. May be called from
        any thread."""
        waiting = len(self.births)
        return f"{waiting} of {self._role.count} actors wait for a node" * bool(waiting)

    def welcome(self, birth: ray.ObjectRef) -> None:
        """Takes the answer of an actor that is up, or that was lost before.

        Errors: RolloutsFailed if it runs other code, or too many were lost in a row.
        """
        worker = self.births.pop(birth)
        try:
            born = ray.get(birth)
        except RayTaskError as error:
            self.replace(worker, worker.generation, error.cause)
        except ACTOR_LOST as error:
            self.replace(worker, worker.generation, error)
        else:
            if difference := differing(born.code, own_code()):
                raise RolloutsFailed(
                    f"{self._role.name} {worker.number} on node {born.address} runs other code: "
                    f"{difference}: install the same ale-jax on all nodes, then the same command "
                    "continues"
                )
            worker.born = born
            self._raylets[born.node] = raylet_of(born.node)
            self._nodes_left.discard(born.node)
            detail = f"actor {worker.number} plays in process {born.pid} on node {born.address}"
            fields = {"actor": worker.number, "pid": born.pid, "node": born.node}
            self._record("actor_started", detail, restarts=worker.generation, **fields)

    def replace(self, worker: WorkerHandle, generation: int, error: Exception) -> None:
        """Asks for another actor in the place of one that was lost, of that generation.
        RolloutsFailed if too many were lost in a row, other than with their nodes."""
        if generation != worker.generation:
            return  # another episode of the same actor has reported the loss already
        has_left = self._its_node_has_left(worker)
        detail = f"its node has left: {error}" if has_left else str(error)
        self._record("actor_lost", detail, actor=worker.number, restarts=generation)
        self.births.pop(worker.birth, None)
        worker.replace(error, is_its_fault=not has_left)
        self.births[worker.birth] = worker

    def node_has_left(self, node: str) -> bool:
        """Returns whether a node that an actor was up on is gone. Ray says so after ten seconds or
        more, while the port of the node's Ray process refuses connections at once."""
        if node not in self._nodes_left and not answers(self._raylets[node]):
            self._nodes_left.add(node)
        return node in self._nodes_left

    def _its_node_has_left(self, worker: WorkerHandle) -> bool:
        if worker.born:
            return self.node_has_left(worker.born.node)
        # Ray places actors on a dead node until it knows, and does not say where it did.
        return not worker.candidates <= alive_nodes()

    def check(self) -> None:
        """Says what actors lack that were not born in time, and asks for them again, in case that
        one has a node but is stuck there. RolloutsFailed if there is no other actor."""
        now, seconds = time.monotonic(), self._placement_seconds
        late = [worker for worker in self.births.values() if now - worker.asked_at > seconds]
        if not late:
            return
        lacks = shortage(self._role.placement)
        why = f"{self._role.name} {late[0].number} did not start within {seconds:g} s: {lacks}"
        up = sum(worker.born is not None for worker in self.workers)
        if not up:
            raise RolloutsFailed(
                f"{why}: add such a node, or change rollout.placement; the same command continues"
            )
        for worker in late:
            del self.births[worker.birth]
            worker.ask_again()
            self.births[worker.birth] = worker
        self._record("actors_unplaced", f"{up} of {self._role.count} actors play; {why}")

    def close(self) -> None:
        """Ends all actors and their sandboxes."""
        goodbyes = {worker.say_goodbye(): worker for worker in self.workers if worker.born}
        answered: list[ray.ObjectRef] = []
        if goodbyes:
            answered, _ = ray.wait([*goodbyes], num_returns=len(goodbyes), timeout=CLOSE_S)
        polite = [goodbyes[answer] for answer in answered]
        for worker in self.workers:
            worker.kill(answers=worker in polite)


class ActorEpisode:
    """A `Playing`. generation, node: of the worker's actor that plays it."""

    def __init__(self, pool: ActorPool, worker: WorkerHandle, conversation: str):
        assert worker.born, "only actors that are up have free places"
        self.worker, self.conversation = worker, conversation
        self.where = f"on actor {worker.number}"
        self.stage, self.is_cancelled = AttemptStage.PLAYED, False
        self._generation, self._node = worker.generation, worker.born.node
        self._pool = pool
        self._outcome: EpisodeResult | Exception | None = None

    @property
    def is_of_its_actor(self) -> bool:
        """Whether the actor that has played it was not replaced."""
        return self._generation == self.worker.generation

    def cancel(self) -> None:
        """A verdict that is being made goes on, as it holds no sandbox; its result is not read."""
        self.is_cancelled = True
        if self.stage is AttemptStage.UNJUDGED:
            self.stage = AttemptStage.OVER
        if self.stage is AttemptStage.QUEUED:
            self._pool.unqueue(self)
        if self.stage is not AttemptStage.JUDGED:
            self.worker.cancel(self.conversation)

    def queue(self) -> None:
        """Waits for a reward worker."""
        self.stage, self._outcome = AttemptStage.QUEUED, None
        self.worker.judges.put(self)

    def judge_again(self) -> None:
        self.queue()

    def give_up(self, reason: str) -> None:
        """Replaces the actor."""
        self._pool.replace(self.worker, self._generation, TimeoutError(reason))

    def read(self, answer: ray.ObjectRef) -> bool:
        """Reads the answer of the actor. False if the episode is still to be judged."""
        try:
            self._outcome = played = ray.get(answer)
        except Exception as error:  # it is raised where the result is asked for
            self._outcome = error
            return True
        assert isinstance(played, EpisodeResult)
        if self.is_of_its_actor:
            self.worker.note(played)
        return played.is_judged

    def lose(self, why: str) -> None:
        """Ends it without a result. why: it has none."""
        self.stage = AttemptStage.OVER
        self._outcome = WorkerLost(why, self._pool.node_has_left(self._node))

    def result(self) -> Episode:
        """Errors: also RayTaskError, with its traceback."""
        outcome = self._outcome
        assert outcome is not None, "it is over"
        if isinstance(outcome, ACTOR_LOST):
            self._pool.replace(self.worker, self._generation, outcome)
            left = self._pool.node_has_left(self._node)
            raise WorkerLost(f"{type(outcome).__name__}: {outcome}", left) from outcome
        if isinstance(outcome, Exception):
            raise outcome
        return outcome.episode
