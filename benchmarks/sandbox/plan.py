"""How often everything is done: in earnest, and quickly."""

from __future__ import annotations

import dataclasses

from ale_jax.sandbox.spec import SandboxSpec

SPEC = SandboxSpec()


@dataclasses.dataclass(frozen=True)
class Plan:
    """commands: for each way to a session. peer_commands: for each peer, which is slower.
    installs_peers: if they are missing. cold_starts: each beside a bare one. file_calls: resets,
    snapshots and restores each. crowds: sandboxes at once, by runtime; crowd_commands: spread over
    them. cycles: of create and stop; starts_at_once: in the middle of which their owner is ended.
    load_seconds: how long a hostile load lasts; quiet_commands: of the neighbour, before it.
    kills: of a sandbox, in each way."""

    commands: int
    peer_commands: int
    installs_peers: bool
    cold_starts: int
    warm_starts: int
    file_calls: int
    crowds: dict[str, int]
    crowd_commands: int
    cycles: int
    starts_at_once: int
    load_seconds: float
    quiet_commands: int
    kills: int


FULL = Plan(
    commands=2000,
    peer_commands=200,
    installs_peers=True,
    cold_starts=40,
    warm_starts=100,
    file_calls=100,
    crowds={"docker": 64, "bubblewrap": 200},
    crowd_commands=10_000,
    cycles=1000,
    starts_at_once=64,
    load_seconds=3.0,
    quiet_commands=500,
    kills=20,
)
QUICK = Plan(
    commands=100,
    peer_commands=10,
    installs_peers=False,
    cold_starts=3,
    warm_starts=4,
    file_calls=4,
    crowds={"docker": 6, "bubblewrap": 16},
    crowd_commands=300,
    cycles=6,
    starts_at_once=12,
    load_seconds=0.3,
    quiet_commands=50,
    kills=2,
)
