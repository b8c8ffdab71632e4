"""Rollout workers on real Ray actors, or threads, and sandboxes, with a policy that knows every
answer."""

import contextlib
import time

from ale_jax.config.agent import AgentLimits
from ale_jax.config.engine import Sampling
from ale_jax.config.rollout import DeadlinesConfig, PlacementConfig, RolloutConfig
from ale_jax.config.worlds import Domain
from ale_jax.engine.request import EngineStopped
from ale_jax.envs.shell.families import TRAIN_FAMILIES
from ale_jax.gateway.app import make_app
from ale_jax.gateway.server import served
from ale_jax.records import EpisodeKey, RolloutRequest, Task
from ale_jax.rollout.worker import RolloutWorker, WorkerSpec
from ale_jax.system.actors.actor_pool import ActorPool
from ale_jax.system.rollouts.policy_replicas import PolicyReplica, PolicyReplicas
from ale_jax.system.rollouts.threads import ThreadPool
from ale_jax.system.rollouts.workers import RolloutWorkers
from tests.system.conftest import SPEC
from tests.system.oracle_ledger import OracleLedger

LIMIT_S = 60.0
LIMITS = AgentLimits(turns=20)
LONG = DeadlinesConfig()
ANYWHERE = PlacementConfig()


class Events(list):
    def __call__(self, kind, detail, **fields):
        self.append({"kind": kind, "detail": detail} | fields)

    def of(self, kind):
        return [event for event in self if event["kind"] == kind]


def keys(count):
    tasks = [Task(TRAIN_FAMILIES[i % len(TRAIN_FAMILIES)], i, "train") for i in range(count)]
    return [EpisodeKey("train", i, 0, task) for i, task in enumerate(tasks)]


DOMAINS = (Domain("shell"), Domain("countdown"))


@contextlib.contextmanager
def workers_of(
    runtime,
    ledger,
    events,
    retries=1,
    actors=2,
    episodes_per_actor=2,
    sandbox=SPEC,
    limits=LIMITS,
    deadlines=LONG,
    placement=ANYWHERE,
    are_up=True,
    threads=False,
):
    """are_up: whether all actors are up when it is given. threads: instead of actors."""
    rollout = RolloutConfig(runtime, actors, episodes_per_actor, 64, retries, placement)
    with served(make_app(ledger.episodes, "oracle")) as url:
        spec = WorkerSpec(runtime, sandbox, limits, DOMAINS)
        replicas = PolicyReplicas([PolicyReplica(ledger, url, lambda: 0)])
        if threads:
            pool = ThreadPool(RolloutWorker(spec), actors * episodes_per_actor, events)
        else:
            pool = ActorPool(rollout, spec, deadlines.placement_seconds, events)
        with RolloutWorkers(pool, replicas, deadlines, retries, events) as workers:
            if are_up:
                run_until(workers, lambda: workers.free_places == actors * episodes_per_actor)
            yield workers


def next_result(workers, timeout=LIMIT_S):
    return next(workers.results(timeout), None)


def next_episode(workers):
    trajectory = next_result(workers)
    assert trajectory is not None, "nothing came back"
    return trajectory.episode


def play_all(workers, wanted):
    waiting, episodes = list(wanted), []
    while len(episodes) < len(wanted):
        while waiting and workers.free_places:
            workers.submit(RolloutRequest(waiting.pop(0)), Sampling())
        episodes.append(next_episode(workers))
    assert next_result(workers, 0.2) is None, "something came back twice"
    return episodes


def wait_until(condition, seconds=LIMIT_S):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def run_until(workers, condition):
    """Lets the workers do its work, with nothing to come back, until `condition` holds."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert next_result(workers, 0.05) is None
        assert time.monotonic() < deadline, "waited in vain"


class SilentLedger(OracleLedger):
    """Its engine is gone."""

    def reply(self, name):
        raise EngineStopped("engine closed")
