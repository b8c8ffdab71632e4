"""A controller that waits for ever in the middle of four episodes: python -m
tests.system.held_workers RUNTIME. Once all are under way it prints its actors' pids, as JSON."""

import json
import sys

from ale_jax.config.agent import AgentLimits
from ale_jax.config.engine import Sampling
from ale_jax.config.rollout import DeadlinesConfig, RolloutConfig
from ale_jax.config.worlds import Domain
from ale_jax.gateway.app import make_app
from ale_jax.gateway.server import served
from ale_jax.records import EpisodeKey, RolloutRequest, Task
from ale_jax.rollout.worker import WorkerSpec
from ale_jax.system.actors.actor_pool import ActorPool
from ale_jax.system.actors.cluster import ray_cluster
from ale_jax.system.rollouts.policy_replicas import PolicyReplica, PolicyReplicas
from ale_jax.system.rollouts.workers import RolloutWorkers
from tests.system.conftest import SPEC
from tests.system.oracle_ledger import OracleLedger


def main(runtime: str) -> None:
    rollout = RolloutConfig(runtime, actors=2, episodes_per_actor=2, max_reply_tokens=64, retries=0)
    waiting = [EpisodeKey("train", group, 0, Task("count", group, "train")) for group in range(4)]
    pids = []
    ledger = OracleLedger()
    ledger.gate.clear()

    def record(kind, detail, **fields):
        pids.append(fields["pid"])

    gateway = make_app(ledger.episodes, "oracle")
    with ray_cluster(rollout.actors), served(gateway) as url:
        spec = WorkerSpec(runtime, SPEC, AgentLimits(turns=9), (Domain("shell", ("count",)),))
        replicas = PolicyReplicas([PolicyReplica(ledger, url, lambda: 0)])
        deadlines = DeadlinesConfig()
        pool = ActorPool(rollout, spec, deadlines.placement_seconds, record)
        with RolloutWorkers(pool, replicas, deadlines, rollout.retries, record) as workers:
            while ledger.asked < 4 or len(pids) < 2:
                while waiting and workers.free_places:
                    workers.submit(RolloutRequest(waiting.pop()), Sampling())
                assert not [*workers.results(0.1)]
            print(json.dumps(pids), flush=True)
            while True:
                assert not [*workers.results(1.0)]


if __name__ == "__main__":
    main(sys.argv[1])
