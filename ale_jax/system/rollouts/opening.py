"""Opens what plays the episodes of a run: engines, gateway and workers.

The workers are Ray actors, or threads of this process.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from ale_jax.config.rollout import THREADS, PlacementConfig, RolloutConfig
from ale_jax.config.run import RunConfig
from ale_jax.gateway.app import make_app
from ale_jax.gateway.custody.ledger import Ledger
from ale_jax.gateway.server import served
from ale_jax.monitor.events import Recorder
from ale_jax.monitor.timeline import Timeline
from ale_jax.rollout.worker import RolloutWorker, WorkerSpec
from ale_jax.sandbox.datasets import Datasets
from ale_jax.sandbox.runtime import login_of
from ale_jax.system.hosts.commands import EnginesObserver
from ale_jax.system.reply_limits import reply_limits
from ale_jax.system.rollouts.policy_replicas import PolicyReplica, PolicyReplicas
from ale_jax.system.rollouts.pool import WorkerPool
from ale_jax.system.rollouts.scheduler import RolloutScheduler
from ale_jax.system.rollouts.threads import ThreadPool
from ale_jax.system.rollouts.workers import RolloutWorkers
from ale_jax.system.start import Setting, Start
from ale_jax.worlds.digests import digests
from ale_jax.worlds.families import families_of


class Rollouts(NamedTuple):
    """What plays the episodes of a run."""

    workers: RolloutWorkers
    replicas: PolicyReplicas
    scheduler: RolloutScheduler


def open_rollouts(
    setting: Setting,
    start: Start,
    record: Callable[..., None],
    ray_address: str,
    stack: contextlib.ExitStack,
    timeline: Timeline | None = None,
) -> Rollouts:
    """Starts the engine, the gateway and the rollout workers, after Ray if they are its actors;
    `stack` closes them. timeline: on which all engines and episodes are recorded."""
    config, tokenizer, trainer = setting.config, start.tokenizer, start.trainer
    rollout, processes = config.rollout, setting.processes
    players = stack.enter_context(_backend(rollout, ray_address))
    trainer.publish(version=start.cursor.step)
    engines = trainer.open_engines(tokenizer.stop_ids)
    stack.callback(engines.close)
    if timeline:
        engines.observe(timeline.sampled, timeline.lent)
    branches = config.external_agent.branches
    ledger = Ledger(engines, tokenizer, config.seed, reply_limits(config), branches)
    gateway = make_app(ledger.episodes, config.name, engines.counts, engines.check)
    url = stack.enter_context(served(gateway, players.address or processes.address))
    own = PolicyReplica(ledger, url, lambda: engines.stats.sampled_tokens)
    files = {file.name: file.read_text() for file in setting.tokenizer_folder.iterdir()}
    observer = _on(timeline, engines.number) if timeline else None
    others = processes.open_replicas(files, players.address, observer)
    replicas = PolicyReplicas([own, *others], timeline)
    deadlines = config.deadlines
    pool = players.open_pool(worker_spec(config), deadlines.placement_seconds, record)
    workers = stack.enter_context(
        RolloutWorkers(pool, replicas, deadlines, rollout.retries, record)
    )

    def check_system() -> None:
        setting.workdir.lease.check()
        engines.check()
        players.check()
        processes.check()

    scheduler = stack.enter_context(RolloutScheduler(workers, check_system))
    return Rollouts(workers, replicas, scheduler)


def _on(timeline: Timeline, each: int) -> EnginesObserver:
    """Returns what records that engines of other processes were busy. each: engines of one."""

    def sampled(
        process: int, engine: int, start: float, end: float, told: Mapping[str, int]
    ) -> None:
        timeline.sampled(process * each + engine, start, end, told)

    return sampled


def worker_spec(config: RunConfig) -> WorkerSpec:
    """Returns what the rollout workers of a run are."""
    return WorkerSpec(
        config.rollout.runtime,
        config.sandbox,
        config.agent,
        config.domains,
        config.worlds.folder,
        config.external_agent,
        login_of(config.rollout.runtime),
        config.rollout.uplink,
        Datasets.parse(config.rollout.datasets),
        digests(families_of(config)),
        config.tools_in_template,
        judges=config.rollout.reward_workers == 0,
    )


@dataclasses.dataclass(frozen=True)
class _Backend:
    """What plays the episodes of a run. address: of this machine, as workers on other nodes reach
    it; empty if there are none. check: raises RolloutsFailed once what plays the episodes is gone.
    open_pool: the pool must be closed."""

    address: str
    check: Callable[[], None]
    open_pool: Callable[[WorkerSpec, float, Recorder], WorkerPool]


def check_backend(rollout: RolloutConfig, ray_address: str) -> None:
    """Raises ValueError unless the backend can be had. ray_address: of the Ray cluster; empty for
    none."""
    if not ray_address:
        return
    if rollout.workers == THREADS:
        raise ValueError(
            f"--ray-address={ray_address} has no use with rollout.workers {THREADS}, which play in "
            "this process: leave it out, or set rollout.workers to ray"
        )
    from ale_jax.system.actors.cluster import check_address

    check_address(ray_address)


@contextlib.contextmanager
def _backend(rollout: RolloutConfig, ray_address: str) -> Iterator[_Backend]:
    """Starts Ray on this machine, or joins the cluster at `ray_address`, until the block ends. With
    threads there is nothing to start, and Ray is not loaded."""
    if rollout.workers == THREADS:
        places = rollout.actors * rollout.episodes_per_actor

        def open_threads(
            spec: WorkerSpec, placement_seconds: float, record: Recorder
        ) -> ThreadPool:
            return ThreadPool(RolloutWorker(spec), places, record, rollout.reward_workers)

        yield _Backend("", lambda: None, open_threads)
        return
    from ale_jax.system.actors.actor_pool import ActorPool
    from ale_jax.system.actors.cluster import ray_cluster

    if not ray_address:  # there is one node, and nothing to choose
        rollout = dataclasses.replace(rollout, placement=PlacementConfig())

    def open_actors(spec: WorkerSpec, placement_seconds: float, record: Recorder) -> ActorPool:
        return ActorPool(rollout, spec, placement_seconds, record)

    with ray_cluster(rollout.actors, ray_address) as cluster:
        yield _Backend(cluster.address, cluster.check, open_actors)
