"""The labels by which a runtime's reaper recognizes what dead processes left at the daemon."""

from __future__ import annotations

import time

from ale_jax.sandbox.cgroups import Owner

OWNER, DEADLINE = "ale.owner", "ale.deadline"
MOMENT_S = 600.0  # no container that helps for a moment is needed for longer


def labels_of(owner: Owner, seconds: float) -> dict[str, str]:
    """Those of a container of `owner`. seconds: after them it counts as abandoned if its owner
    cannot be checked from the reaper's host."""
    return {OWNER: str(owner), DEADLINE: str(int(time.time() + seconds))}


def momentary() -> dict[str, str]:
    """Those of a container that this process removes as soon as it has used it."""
    return labels_of(Owner.current(), MOMENT_S)
