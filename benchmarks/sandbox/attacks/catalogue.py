"""All attacks, in the order in which they are tried."""

from __future__ import annotations

from benchmarks.sandbox.attacks import (
    files,
    isolation,
    neighbours,
    network,
    protocol,
    resources,
    reward,
    runner,
    sessions,
)

ATTACKS = (
    *isolation.ATTACKS,
    *runner.ATTACKS,
    *neighbours.ATTACKS,
    *network.ATTACKS,
    *files.ATTACKS,
    *sessions.ATTACKS,
    *protocol.ATTACKS,
    *reward.ATTACKS,
    *resources.ATTACKS,
)
