"""A run on all its processes: the first one controls it, and the others follow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import jax

from ale_jax.model.sharding import make_mesh
from ale_jax.system.compilation import keep_compiled
from ale_jax.system.config import RunConfig
from ale_jax.system.hosts.commands import Alone, Processes
from ale_jax.system.hosts.follower import follow
from ale_jax.system.hosts.leader import Leader
from ale_jax.system.hosts.start import accept_followers, connect_to_leader, digest
from ale_jax.system.library_log import LibraryLog
from ale_jax.system.stopping import INTERRUPTED, StopSignals
from ale_jax.system.trainer import Trainer

FAILED = 2
GRACE_MORE_S = 10.0  # for a follower, to whom nothing is left to save


@contextlib.contextmanager
def led(config: RunConfig, coordinator: str) -> Iterator[Processes]:
    """The processes of a run, for the first of them; the others exit when the block ends."""
    if jax.process_count() == 1:
        yield Alone()
        return
    leader = Leader(accept_followers(coordinator, digest(config.to_json())))
    code = FAILED
    try:
        yield leader
        code = 0
    except KeyboardInterrupt:
        code = INTERRUPTED
        raise
    finally:
        leader.end(code)


def follow_run(config: RunConfig, path: Path) -> int:
    """Takes part in the run in `path` until its first process ends it; returns the exit code."""
    connection = connect_to_leader(digest(config.to_json()))
    keep_compiled(config.compilation_cache)
    mesh, number = make_mesh(config.mesh), jax.process_index()

    def make_trainer(tokenizer_size: int) -> Trainer:
        return Trainer(config, config.policy_shape(tokenizer_size), mesh)

    # The first process takes up to the grace to save, and this one ends after it.
    grace = config.checkpoint.grace_seconds + GRACE_MORE_S
    with (
        LibraryLog(path, f"library.{number}.log"),
        StopSignals(grace, lambda: connection.send({"kind": "stop"})),
    ):
        return follow(connection, make_trainer)
