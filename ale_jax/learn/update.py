"""The optimizer's update, in parts: what is outside of the layers, and then each layer.

Layers of one form share a compiled program. One program for a whole model would take longer to
compile with each layer, most of all because whether the update is applied depends on the gradient
of every weight, and the compiler computes such a number again wherever it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ale_jax.learn.finite import BROKEN, SKIPPED, all_finite, choose
from ale_jax.learn.state import place_moments
from ale_jax.model.params import Params

Updated = tuple[Params, optax.OptState, jax.Array, dict[str, jax.Array]]


class Update:
    """An update of weights and moments, whose memory the gradient and the moments give away.

    It is not applied if the loss or the norm of the gradient is not finite: then weights, moments
    and step stay as they were. The norm is finite if each number of the gradient is, unless the sum
    of their squares overflows, at a norm of 1.8e19.
    """

    def __init__(self, optimizer: optax.GradientTransformation, weights: Params, mesh: Mesh):
        """optimizer: updates each weight by itself, except that it may read `norm`, which is that
        of the whole gradient. If `skipped`, it leaves its moments as they are (`keeping`). weights:
        those trained, or their abstract form."""
        self._everywhere = every = NamedSharding(mesh, PartitionSpec())
        places = place_moments(optimizer, weights, mesh)
        nodes, self._form = jax.tree.flatten(places, is_leaf=_has_layers)
        self._is_moments = [_has_layers(node) for node in nodes]
        self._optimizer = optax.with_extra_args_support(optimizer)
        self._judge = jax.jit(_judge, out_shardings=every)
        # Of one function, so that parts of one form share a compiled program.
        self._programs = [
            jax.jit(
                self._update_part,
                out_shardings=(weights_part, moments_part, every, every),
                donate_argnums=(0, 1),
            )
            for weights_part, *moments_part in _in_parts(
                jax.tree.map(lambda w: w.sharding, weights), *self._split(places)[0]
            )
        ]

    def __call__(
        self,
        grads: Params,
        opt_state: optax.OptState,
        moved: Params,
        step: jax.Array,
        loss: jax.Array,
    ) -> Updated:
        """Returns weights, moments, the number of updates made, and metrics.

        moved: the weights that are trained. step: the number of updates made before. loss: scalar.
        """
        # All is decided on the device, so that the host need not wait for the step before it
        # dispatches the next.
        norm, skipped, step, broken = self._judge(grads, step, loss)
        moments, counters = self._split(opt_state)
        parts: list[list[Any]] = []
        after = counters
        for program, (grads_part, moved_part, *moments_part) in zip(
            self._programs, _in_parts(grads, moved, *moments), strict=True
        ):
            new, new_moments, after, broken = program(
                grads_part, moments_part, moved_part, counters, norm, skipped, broken
            )
            parts.append([new, *new_moments])
        moved, *moments = map(_joined, zip(*parts, strict=True))
        sums = {"grad_norm": norm, SKIPPED: skipped, BROKEN: broken}
        return moved, self._merge(moments, after), step, sums

    def lower(
        self, grads: Params, opt_state: optax.OptState, moved: Params, step: Any, loss: Any
    ) -> list[jax.stages.Lowered]:
        """Lowers the programs, one for each form of part, for such arguments or their abstract
        forms."""
        norm, skipped, _, broken = (
            jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self._everywhere)
            for x in jax.eval_shape(_judge, grads, step, loss)
        )
        moments, counters = self._split(opt_state)
        lowered = [self._judge.lower(grads, step, loss)]
        for program, (grads_part, moved_part, *moments_part) in zip(
            self._programs, _in_parts(grads, moved, *moments), strict=True
        ):
            arguments = grads_part, moments_part, moved_part, counters, norm, skipped, broken
            lowered.append(program.lower(*arguments))
        return list({str(each.in_avals): each for each in lowered}.values())

    def _update_part(
        self,
        grads: Params,
        moments: list[Params],
        moved: Params,
        counters: list[jax.Array],
        norm: jax.Array,
        skipped: jax.Array,
        broken: jax.Array,
    ) -> tuple[Params, list[Params], list[jax.Array], jax.Array]:
        state = self._merge(moments, counters)
        extra = {"norm": norm, "skipped": skipped}
        updates, new_state = self._optimizer.update(grads, state, moved, **extra)
        new = choose(skipped, moved, optax.apply_updates(moved, updates))
        moments, after = self._split(new_state)
        return new, moments, choose(skipped, counters, after), broken | ~all_finite(new)

    def _split(self, state: optax.OptState) -> tuple[list[Params], list[Any]]:
        """Returns what of an optimizer's state has the form of the weights, and the rest."""
        nodes = jax.tree.leaves(state, is_leaf=_has_layers)
        named = list(zip(self._is_moments, nodes, strict=True))
        return [node for is_, node in named if is_], [node for is_, node in named if not is_]

    def _merge(self, moments: Sequence[Params], counters: Sequence[Any]) -> optax.OptState:
        each, other = iter(moments), iter(counters)
        nodes = [next(each if is_ else other) for is_ in self._is_moments]
        return jax.tree.unflatten(self._form, nodes)


def _judge(
    grads: Params, step: jax.Array, loss: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Returns the gradient's norm, whether to skip the update, the number of updates with it, and
    whether a weight is known not to be finite: not yet."""
    norm = optax.tree.norm(grads)
    fine = jnp.isfinite(norm) & jnp.isfinite(loss)
    return norm, ~fine, step + fine, jnp.zeros((), bool)


def _has_layers(node: Any) -> bool:
    """Tells whether a node of a tree has the form of weights: a model's, or the adapters'."""
    return isinstance(node, list) or (isinstance(node, dict) and "layers" in node)


def _in_parts(*trees: Params) -> list[tuple[Params, ...]]:
    return list(zip(*map(_parts, trees), strict=True))


def _parts(tree: Params) -> list[Params]:
    if isinstance(tree, list):
        return [[layer] for layer in tree]
    layers = [{"layers": [layer]} for layer in tree["layers"]]
    return [tree | {"layers": []}, *layers]


def _joined(parts: Sequence[Params]) -> Params:
    """Returns the tree whose `_parts` these are."""
    if isinstance(parts[0], list):
        return [layer for (layer,) in parts]
    outside, *layers = parts
    return outside | {"layers": [layer for part in layers for layer in part["layers"]]}
