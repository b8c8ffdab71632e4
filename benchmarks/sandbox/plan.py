"""Numbers of repetitions, for the full benchmark and with --quick."""

from __future__ import annotations

import dataclasses

from ale_jax.sandbox.spec import SandboxSpec

SPEC = SandboxSpec()


@dataclasses.dataclass(frozen=True)
class Plan:
    """commands: for each way to reach a session. peer_commands: for each peer, which is slower.
    installs_peers: whether missing peers are installed. cold_starts: each next to a bare one.
    file_calls: number of resets, of snapshots and of restores. crowds: concurrent sandboxes, by
    runtime. crowd_commands: distributed over them. crowd_seconds: of heartbeats alone, and of a
    steady load. restart_sandboxes, restart_rate: of the service that is killed `restarts` times,
    and its commands per second. restart_seconds: of load before and after each kill. cycles: of
    create and stop. starts_at_once: concurrent starts during which their owner is killed. effort:
    of attacks (see `Arena`). quiet_commands: of the attacks' neighbour, before a load. kills: of a
    sandbox, for each fault. hostile_episodes: each an attack and an oracle's episode.
    """

    commands: int
    peer_commands: int
    installs_peers: bool
    cold_starts: int
    warm_starts: int
    file_calls: int
    crowds: dict[str, int]
    crowd_commands: int
    crowd_seconds: float
    restart_sandboxes: int
    restart_rate: float
    restart_seconds: float
    restarts: int
    cycles: int
    starts_at_once: int
    effort: float
    quiet_commands: int
    kills: int
    hostile_episodes: int


FULL = Plan(
    commands=2000,
    peer_commands=200,
    installs_peers=True,
    cold_starts=40,
    warm_starts=100,
    file_calls=100,
    crowds={"docker": 64, "bubblewrap": 500},
    crowd_commands=10_000,
    crowd_seconds=20.0,
    restart_sandboxes=200,
    restart_rate=100.0,
    restart_seconds=10.0,
    restarts=3,
    cycles=1000,
    starts_at_once=64,
    effort=1.0,
    quiet_commands=500,
    kills=20,
    hostile_episodes=1000,
)
QUICK = Plan(
    commands=100,
    peer_commands=10,
    installs_peers=False,
    cold_starts=2,
    warm_starts=3,
    file_calls=4,
    crowds={"docker": 4, "bubblewrap": 12},
    crowd_commands=240,
    crowd_seconds=2.0,
    restart_sandboxes=4,
    restart_rate=20.0,
    restart_seconds=1.0,
    restarts=1,
    cycles=4,
    starts_at_once=8,
    effort=0.1,
    quiet_commands=25,
    kills=1,
    hostile_episodes=12,
)
