"""The state that training carries from step to step, and its optimizer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from flax import struct
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.model import FULL, LoraShape
from ale_jax.config.optimizer import OptimizerHypers
from ale_jax.learn.adam import adamw, keeping
from ale_jax.learn.clip import clip_by_norm
from ale_jax.learn.schedule import decay_from_event, decayed, rate_schedule
from ale_jax.model.lora import new_adapters, trained, trained_table
from ale_jax.model.params import Param, Params, is_param, param_table
from ale_jax.model.sharding import param_shardings, table_shardings


@struct.dataclass
class TrainState:
    """The state of training.

    params: weights, with adapters if only these are trained. opt_state: of the optimizer, for the
    trained weights. step: the number of updates made, an int32 scalar.
    """

    params: Params
    opt_state: optax.OptState
    step: jax.Array


@struct.dataclass
class WholeState:
    """The state of a run's models, of which a checkpoint holds what `stored` returns. critics: of
    each critic, empty without critics."""

    policy: TrainState
    critics: tuple[TrainState, ...] = ()


def make_optimizer(
    hp: OptimizerHypers, shape: PolicyShape, lora: LoraShape = FULL, updates: int = 0
) -> optax.GradientTransformation:
    """Makes the optimizer of a policy's trained weights, those of its shape or its adapters.
    updates: see `table_optimizer`."""
    return table_optimizer(hp, trained_table(shape, lora), updates)


def table_optimizer(
    hp: OptimizerHypers, table: Params, updates: int = 0
) -> optax.GradientTransformation:
    """Makes an optimizer with its schedule. table: describes the weights that are trained. updates:
    of the whole run; 0: rates stay, as where only the shapes of moments are asked for."""
    warmup, decay = hp.schedule(updates)

    def schedule(rate: float) -> optax.Schedule:
        return rate_schedule(rate, warmup, 0 if hp.decay_success else decay)

    adam = {"b1": hp.b1, "b2": hp.b2, "weight_decay": hp.weight_decay}
    if hp.name == "adamw":
        update = adamw(schedule(hp.learning_rate), **adam)
    elif hp.name == "adafactor":
        update = keeping(_adafactor(hp, schedule(hp.learning_rate)))
    else:
        muon = optax.contrib.muon(
            schedule(hp.muon_learning_rate),
            beta=hp.b1,
            weight_decay=hp.weight_decay,
            adam_b1=hp.b1,
            adam_b2=hp.b2,
            adam_weight_decay=hp.weight_decay,
            adam_learning_rate=schedule(hp.learning_rate),
            muon_weight_dimension_numbers=_matrices(table),
        )
        update = keeping(muon)
    steps = [clip_by_norm(hp.clip_norm), update]
    described = jax.tree_util.tree_leaves_with_path(table, is_leaf=is_param)
    if frozen := {_names(path) for path, param in described if param.is_frozen}:
        # Without a gradient, they would still decay.
        steps.append(optax.masked(optax.set_to_zero(), partial(_is_among, frozen)))
    return optax.chain(*steps, *[decay_from_event(decay)] * bool(hp.decay_success))


def _is_among(names: set[tuple[str, ...]], weights: Params) -> Params:
    return jax.tree_util.tree_map_with_path(lambda path, _: _names(path) in names, weights)


def _adafactor(hp: OptimizerHypers, rate: optax.Schedule) -> optax.GradientTransformation:
    """Makes the factored moment and the clipped update of Shazeer and Stern 2018. Unlike in
    optax.adafactor, the rate is absolute and scales the weight decay, as in AdamW."""
    return optax.chain(
        optax.scale_by_factored_rms(),
        optax.clip_by_block_rms(1.0),
        optax.add_decayed_weights(hp.weight_decay),
        optax.scale_by_learning_rate(rate),
    )


def _matrices(table: Params) -> Callable[[Params], Params]:
    """Makes a function that returns, for each of some weights of the table, which of its dims are
    the rows and columns of a matrix; None without. It does not depend on a layer's number."""
    described = jax.tree_util.tree_leaves_with_path(table, is_leaf=is_param)
    matrix = {_names(path): param.matrix for path, param in described}

    def dims(path: tuple[Any, ...], weight: Any) -> optax.contrib.MuonDimensionNumbers | None:
        del weight
        found = matrix[_names(path)]
        return found and optax.contrib.MuonDimensionNumbers(*found)

    return lambda weights: jax.tree_util.tree_map_with_path(dims, weights)


def _names(path: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(key.key for key in path if isinstance(key, jax.tree_util.DictKey))


def last_rate(hp: OptimizerHypers, updates: int, state: TrainState) -> float:
    """Returns `learning_rate` as the last update had it, by its schedule; before the first one, as
    that will have it. updates: of the whole run."""
    count = max(int(state.step) - 1, 0)
    warmup, decay = hp.schedule(updates)
    rate = rate_schedule(hp.learning_rate, warmup, 0 if hp.decay_success else decay)(count)
    if hp.decay_success:
        rate *= decayed(state.opt_state, count, decay)
    return float(rate)


def init_state(
    key: jax.Array,
    shape: PolicyShape,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    lora: LoraShape = FULL,
) -> TrainState:
    """Makes a new state. Each weight is created on the devices that will hold it."""
    params = with_new_adapters(key, draw_weights(key, shape, mesh), shape, lora, mesh)
    return begin(params, optimizer, mesh)


def draw_weights(key: jax.Array, shape: PolicyShape, mesh: Mesh) -> Params:
    """Draws random weights without adapters, each on the devices that will hold it."""
    return draw_table(key, param_table(shape), param_shardings(shape, mesh))


def draw_table(key: jax.Array, table: Params, places: Params) -> Params:
    """Draws the weights of `init_table`, each by a program of its own, which all weights share that
    are alike. places: the sharding of each."""
    params, tree = jax.tree.flatten(table, is_leaf=is_param)
    drawn = [
        jax.jit(_draw, static_argnums=2, out_shardings=place)(key, number, param)
        for number, (param, place) in enumerate(zip(params, jax.tree.leaves(places), strict=True))
    ]
    return jax.tree.unflatten(tree, drawn)


def _draw(key: jax.Array, number: int, param: Param) -> jax.Array:
    return param.init(jax.random.fold_in(key, number), param.shape, jnp.float32)


def with_new_adapters(
    key: jax.Array, params: Params, shape: PolicyShape, lora: LoraShape, mesh: Mesh
) -> Params:
    """Returns the weights with new adapters; unchanged if `lora` has rank 0."""
    if not lora.rank:
        return params
    places = jax.tree.map(lambda w: w.sharding, abstract_trained(shape, lora, mesh))
    everywhere = NamedSharding(mesh, PartitionSpec())
    make = jax.jit(
        new_adapters,
        static_argnums=(1, 2),
        out_shardings={"adapters": places, "adapter_scale": everywhere},
    )
    return params | make(key, shape, lora)


def begin(params: Params, optimizer: optax.GradientTransformation, mesh: Mesh) -> TrainState:
    """Makes the state at step 0 of training `params`. Moments are sharded like their weights."""
    moved = trained(params)
    places = place_moments(optimizer, moved, mesh)
    everywhere = NamedSharding(mesh, PartitionSpec())
    # By a program: where each of several processes has one device, jax 0.10.2 misreads the shards
    # of an array of its own after `device_put`.
    step = jax.jit(lambda: jnp.zeros((), jnp.int32), out_shardings=everywhere)()
    return TrainState(params, jax.jit(optimizer.init, out_shardings=places)(moved), step)


def abstract_trained(shape: PolicyShape, lora: LoraShape, mesh: AbstractMesh | Mesh) -> Params:
    """Returns shape, dtype and sharding of each trained weight."""
    return abstract_weights(trained_table(shape, lora), mesh)


def abstract_weights(table: Params, mesh: AbstractMesh | Mesh) -> Params:
    """Returns shape, dtype and sharding of each weight that a table describes. Errors: as
    `table_shardings`."""

    def describe(param: Param, place: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(param.shape, jnp.float32, sharding=place)

    return jax.tree.map(describe, table, table_shardings(table, mesh), is_leaf=is_param)


def abstract_state(
    shape: PolicyShape,
    optimizer: optax.GradientTransformation,
    mesh: AbstractMesh | Mesh,
    lora: LoraShape = FULL,
) -> TrainState:
    """Returns shape, dtype and sharding of everything in a state, as the target of a restore."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    params, moved = (abstract_trained(shape, each, mesh) for each in (FULL, lora))
    if lora.rank:
        scale = jax.ShapeDtypeStruct((), jnp.float32, sharding=everywhere)
        params |= {"adapters": moved, "adapter_scale": scale}
    return abstract_begun(params, moved, optimizer, mesh)


def abstract_begun(
    params: Params,
    moved: Params,
    optimizer: optax.GradientTransformation,
    mesh: AbstractMesh | Mesh,
) -> TrainState:
    """Returns the abstract form of what `begin` makes. params: all weights; moved: the trained
    ones."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    opt_state = jax.tree.map(
        lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
        jax.eval_shape(optimizer.init, moved),
        place_moments(optimizer, moved, mesh),
    )
    return TrainState(params, opt_state, jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere))


def place_moments(
    optimizer: optax.GradientTransformation, moved: Params, mesh: AbstractMesh | Mesh
) -> optax.OptState:
    """Returns the sharding of each moment. moved: the trained weights, or their abstract form.

    The path of a moment ends with the path of its weight. A factored moment (Adafactor) lacks one
    of the weight's dimensions.
    """
    weights = dict(jax.tree_util.tree_leaves_with_path(moved))

    def place(path: tuple[Any, ...], moment: jax.ShapeDtypeStruct) -> NamedSharding:
        tails = (path[i:] for i in range(len(path)))
        weight = next((weights[tail] for tail in tails if tail in weights), None)
        return NamedSharding(mesh, _moment_spec(moment.shape, weight))

    return jax.tree_util.tree_map_with_path(place, jax.eval_shape(optimizer.init, moved))


def _moment_spec(shape: tuple[int, ...], weight: jax.Array | None) -> PartitionSpec:
    if weight is None:
        return PartitionSpec()
    assert isinstance(weight.sharding, NamedSharding), weight.sharding
    named = weight.sharding.spec
    axes = (*named, *[None] * (len(weight.shape) - len(named)))
    if shape == weight.shape:
        return PartitionSpec(*axes)
    for dim in range(len(axes)):
        if shape == weight.shape[:dim] + weight.shape[dim + 1 :]:
            return PartitionSpec(*axes[:dim], *axes[dim + 1 :])
    return PartitionSpec()
