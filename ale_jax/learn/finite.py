"""Updates that are not finite: not applied on the device, counted on the host.

One infinite gradient would make every weight NaN, and the next checkpoint would replace a good one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ale_jax.errors import RunFailed

# Sums of a step: 1 if its update was not applied; 1 if the weights themselves are not finite.
SKIPPED, BROKEN = "skipped_updates", "broken_weights"


def all_finite(tree: Any) -> jax.Array:
    """Tells whether every number of every array is finite, as a bool scalar on the device."""
    # A maximum is NaN if a number is, and compiles in half the time of isfinite of each number.
    largest = (jnp.abs(leaf).max() for leaf in jax.tree.leaves(tree))
    return functools.reduce(jnp.logical_and, map(jnp.isfinite, largest), jnp.ones((), bool))


def choose(condition: jax.Array | bool, one: Any, other: Any) -> Any:
    """Returns `one` if the scalar `condition` is true, else `other`; trees of equal structure."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)


class SkippedUpdates:
    """The count of updates that were not applied, which ends the run after `limit` in a row.

    remedy: what the user can do; what: what is counted, as a plural. Both are for the error.

        >>> skipped = SkippedUpdates(limit=2, remedy="lower the learning rate")
        >>> [skipped.note({SKIPPED: number}, step=step) for step, number in enumerate([0, 1, 0])]
        [False, True, False]
    """

    def __init__(self, limit: int, remedy: str, what: str = "updates"):
        self._limit, self._remedy, self._what = limit, remedy, what
        self._in_a_row = 0

    def note(self, sums: Mapping[str, Any], step: int) -> bool:
        """Tells whether the update of `step` was skipped. sums: of the train step, on the host.

        Without SKIPPED the step had no update, which is neither a good one nor a skipped one.

        Raises:
          RunFailed: the weights are not finite, or `limit` updates in a row were skipped.
        """
        if sums.get(BROKEN):
            raise RunFailed(
                f"step {step}: the weights are not finite, so the step was neither published nor "
                f"saved: {self._remedy}"
            )
        if SKIPPED not in sums:
            return False
        skipped = bool(sums[SKIPPED])
        self._in_a_row = self._in_a_row + 1 if skipped else 0
        if self._in_a_row >= self._limit:
            raise RunFailed(
                f"step {step}: {self._in_a_row} {self._what} in a row had a loss or a gradient "
                f"that is not finite, and were not applied: {self._remedy}"
            )
        return skipped
