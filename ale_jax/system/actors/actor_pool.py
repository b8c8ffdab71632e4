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
from ale_jax.system.rollouts.pool import PoolCounts, WorkerLost

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
        places = rollout.episodes_per_actor
        # One thread more than episodes, so that other calls are answered at any time.
        self._role = Role(
            "rollout worker", RolloutActor, rollout.actors, places + 1, rollout.placement
        )
        self._placement_seconds, self._record = placement_seconds, record
        self.workers = [
            WorkerHandle(number, self._role, spec, places) for number in range(self._role.count)
        ]
        self.births: dict[ray.ObjectRef, WorkerHandle] = {
            worker.birth: worker for worker in self.workers
        }
        self._playing: dict[ray.ObjectRef, ActorEpisode] = {}
        self._raylets: dict[str, tuple[str, int]] = {}  # of the nodes that actors were up on
        self._nodes_left: set[str] = set()

    @property
    def free(self) -> int:
        """Number of episodes that can begin."""
        return sum(worker.free for worker in self.workers)

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
        answer = worker.play(key, url, conversation, prefix)
        worker.busy += 1
        self._playing[answer] = episode = ActorEpisode(self, worker, conversation, answer)
        return episode

    def finished(self, timeout: float) -> list[ActorEpisode]:
        found = []
        for answer in self._answers(timeout):
            if answer in self._playing:
                episode = self._playing.pop(answer)
                episode.worker.busy -= 1
                found.append(episode)
            elif answer in self.births:  # else of an actor that was replaced since
                self.welcome(answer)
        return found

    def _answers(self, timeout: float) -> list[ray.ObjectRef]:
        """All answers that have come, as soon as there is one; none after `timeout` seconds."""
        awaited = [*self.births, *self._playing]
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

    def __init__(
        self, pool: ActorPool, worker: WorkerHandle, conversation: str, answer: ray.ObjectRef
    ):
        self.worker = worker
        self.where = f"on actor {worker.number}"
        self._generation, self._node = worker.generation, worker.born.node
        self._pool, self._conversation, self._answer = pool, conversation, answer

    def cancel(self) -> None:
        self.worker.cancel(self._conversation)

    def give_up(self, reason: str) -> None:
        """Replaces the actor."""
        self._pool.replace(self.worker, self._generation, TimeoutError(reason))

    def result(self) -> Episode:
        """Errors: also RayTaskError, with its traceback."""
        try:
            played: EpisodeResult = ray.get(self._answer)
        except ACTOR_LOST as error:
            self._pool.replace(self.worker, self._generation, error)
            left = self._pool.node_has_left(self._node)
            raise WorkerLost(f"{type(error).__name__}: {error}", left) from error
        if self._generation == self.worker.generation:
            self.worker.note(played)
        return played.episode
