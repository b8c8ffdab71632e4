"""Where the episodes of a run are played: on Ray actors, or in threads of this process."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

from ale_jax.config.rollout import THREADS, PlacementConfig, RolloutConfig
from ale_jax.envs import registry
from ale_jax.monitor.events import Recorder
from ale_jax.rollout.worker import RolloutWorker, WorkerSpec
from ale_jax.system.rollouts.pool import WorkerPool
from ale_jax.system.rollouts.threads import ThreadPool


@dataclasses.dataclass(frozen=True)
class Backend:
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
def backend(rollout: RolloutConfig, ray_address: str) -> Iterator[Backend]:
    """Starts Ray on this machine, or joins the cluster at `ray_address`, until the block ends. With
    threads there is nothing to start, and Ray is not loaded."""
    if rollout.workers == THREADS:
        places = rollout.actors * rollout.episodes_per_actor

        def open_threads(
            spec: WorkerSpec, placement_seconds: float, record: Recorder
        ) -> ThreadPool:
            return ThreadPool(RolloutWorker(spec, registry), places, record)

        yield Backend("", lambda: None, open_threads)
        return
    from ale_jax.system.actors.actor_pool import ActorPool
    from ale_jax.system.actors.cluster import ray_cluster

    if not ray_address:  # there is one node, and nothing to choose
        rollout = dataclasses.replace(rollout, placement=PlacementConfig())

    def open_actors(spec: WorkerSpec, placement_seconds: float, record: Recorder) -> ActorPool:
        return ActorPool(rollout, spec, placement_seconds, record)

    with ray_cluster(rollout.actors, ray_address) as cluster:
        yield Backend(cluster.address, cluster.check, open_actors)
