"""Applies the layers of a deep model by a scan, so that one of them is compiled and not each.

Compiling 48 layers for a TPU takes a quarter of an hour or more; the scan takes a minute or two.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

# As many layers of one form in a row are scanned. For fewer, it does not pay that the scan needs a
# copy of their weights in which they are stacked.
SCANNED = 8


def apply_in_turn(
    apply: Callable[[jax.Array, Any], tuple[jax.Array, Any]],
    x: jax.Array,
    layers: Sequence[Any],
    for_scan: Callable[[Any], Any],
) -> tuple[jax.Array, list[Any]]:
    """The last x of `x, out = apply(x, layer)` for each layer in turn, and the list of each out.

    layers: trees of arrays, which differ in form where the model's layers do. for_scan: what of a
    layer is stacked, which `apply` must accept in its place. Smaller is better.
    """
    outs: list[Any] = []
    for alike in runs(layers):
        if len(alike) < SCANNED:
            for layer in alike:
                x, out = apply(x, layer)
                outs.append(out)
            continue
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(for_scan, alike))
        x, stacked_outs = jax.lax.scan(apply, x, stacked)
        outs += [_each(stacked_outs, i) for i in range(len(alike))]
    return x, outs


def scanned(layers: Sequence[Any]) -> list[Any]:
    """Those of the layers that are scanned."""
    return [layer for alike in runs(layers) if len(alike) >= SCANNED for layer in alike]


def runs(layers: Sequence[Any]) -> Iterator[list[Any]]:
    """The layers, in runs of one form."""
    for _, alike in itertools.groupby(layers, key=_form):
        yield list(alike)


def _form(layer: Any) -> tuple[Any, ...]:
    leaves, tree = jax.tree.flatten(layer)
    return tree, *((leaf.shape, leaf.dtype) for leaf in leaves)


def _each(stacked: Any, index: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], stacked)
