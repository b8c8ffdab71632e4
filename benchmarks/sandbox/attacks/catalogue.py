"""All attacks, in the order in which they are tried."""

from __future__ import annotations

from benchmarks.sandbox.attacks import (
    files,
    isolation,
    neighbours,
    network,
    protocol,
    relays,
    remains,
    resources,
    reward,
    runner,
    sessions,
    tenants,
)

ATTACKS = (
    *isolation.ATTACKS,
    *runner.ATTACKS,
    *remains.ATTACKS,
    *neighbours.ATTACKS,
    *network.ATTACKS,
    *relays.ATTACKS,
    *files.ATTACKS,
    *sessions.ATTACKS,
    *protocol.ATTACKS,
    *reward.ATTACKS,
    *resources.ATTACKS,
    *tenants.ATTACKS,
)
