"""The critics of a run: their weights, the values they predict, and how they learn (AsyPPO, PPO).

Q critics of one shape share one compiled program. They run one after the other, so that only one
critic's activations are in memory. `ale_jax.algo.values` has the method and its source,
`ale_jax.learn.token_credit` the credit that comes from the values.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from ale_jax.algo.values import critic_loss, critic_of
from ale_jax.config.algo import AlgoConfig
from ale_jax.config.architecture import PolicyShape
from ale_jax.config.critics import CriticsHypers
from ale_jax.config.model import Compute
from ale_jax.data.reading import read_tokens
from ale_jax.data.selection import select_segments
from ale_jax.learn.finite import BROKEN, SKIPPED
from ale_jax.learn.rows import own_rows, to_device, with_rows
from ale_jax.learn.state import (
    TrainState,
    abstract_begun,
    abstract_weights,
    begin,
    draw_table,
    table_optimizer,
)
from ale_jax.learn.step import Metrics, ModelSpec, UpdateStep
from ale_jax.learn.token_credit import returns, time_steps
from ale_jax.model.compute import EXACT
from ale_jax.model.lora import merged, with_trained
from ale_jax.model.moe import balancing_loss, router_sums
from ale_jax.model.params import Params
from ale_jax.model.policy import HEAD, token_values, value_table
from ale_jax.model.sharding import table_shardings
from ale_jax.records import Batch

# Metrics of a step: the critics' updates that were not finite, and the critics that made no other,
# or whose weights are not finite.
CRITIC_SKIPPED, CRITICS_WITHOUT_UPDATE = "critic_skipped_updates", "critics_without_update"
CRITICS_BROKEN = "critics_with_broken_weights"


def critic_model(hp: CriticsHypers, policy: ModelSpec) -> ModelSpec:
    """Returns what the steps of each critic compute with."""
    return dataclasses.replace(policy, shape=hp.shape(policy.shape))


@dataclasses.dataclass(frozen=True)
class CriticInput:
    """Packed rows that a critic reads, as in a `Batch`."""

    tokens_BT: np.ndarray
    position_BT: np.ndarray
    segment_BT: np.ndarray
    read_BR: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class ValueBatch(CriticInput):
    """A critic's input with its targets: the return of each token that it learns from (own_BT)."""

    return_BT: np.ndarray
    own_BT: np.ndarray


INPUTS = tuple(field.name for field in dataclasses.fields(CriticInput))


class Critics:
    """The critics of one run.

    state: weights and moments of each critic, as a checkpoint stores them.
    """

    def __init__(
        self, hp: CriticsHypers, policy: ModelSpec, state: tuple[TrainState, ...], updates: int = 0
    ):
        """state: of each critic, new (`make`) or from a checkpoint. updates: of the whole run, for
        the schedule of the rate (`table_optimizer`)."""
        self.hp, self.state = hp, state
        self._model = model = critic_model(hp, policy)
        optimizer = table_optimizer(hp.optimizer, value_table(model.shape), updates)
        dtype, weights = model.compute.compute_dtype, state[0].params
        self._step = UpdateStep(critic_gradient(model), optimizer, weights, model.mesh, dtype)

    @classmethod
    def make(
        cls,
        hp: CriticsHypers,
        policy: ModelSpec,
        params: Params,
        key: jax.Array,
        updates: int = 0,
    ) -> Critics:
        """Makes new critics, each with random weights of its own.

        Critics of the policy's shape start with its weights, `params`, and a head that predicts 0.
        ValueError if the mesh cannot divide them.
        """
        model = critic_model(hp, policy)
        table = value_table(model.shape)
        optimizer = table_optimizer(hp.optimizer, table)
        places = table_shardings(table, model.mesh)
        states = []
        for number in range(hp.count):
            weights = draw_table(jax.random.fold_in(key, number), table, places)
            if model.shape == policy.shape:
                trunk = merged(params)
                weights |= {name: trunk[name] for name in table if name != HEAD}
                weights = jax.device_put(weights, places)
            states.append(begin(weights, optimizer, model.mesh))
        return cls(hp, policy, tuple(states), updates)

    @property
    def warming_up(self) -> bool:
        """Whether the policy must wait, counted by the critics' own updates."""
        updates = self.hp.warmup_steps * self.hp.epochs * self.hp.minibatches
        return max(int(state.step) for state in self.state) < updates

    def values(self, batches: Sequence[Batch]) -> list[list[np.ndarray]]:
        """Predicts, for each batch and critic, the value before each token, float32 [B, T].

        The arrays hold the rows of this process.
        """
        model, found = self._model, []
        with jax.set_mesh(model.mesh):
            for batch in batches:
                rows = CriticInput(*(getattr(batch, name) for name in INPUTS))
                arrays = to_device(rows, model.mesh)
                found.append(
                    [_values(s.params, arrays, model.shape, model.compute) for s in self.state]
                )
        return [[own_rows(value_BT) for value_BT in every] for every in found]

    def update(self, batches: Sequence[ValueBatch], number: int, tokens: int) -> Metrics:
        """Updates critic `number` once, from the sum over `tokens` tokens; the sums that it returns
        are still on the device."""
        state, sums, _ = self._step(self.state[number], batches, np.float32(tokens))
        self.state = (*self.state[:number], state, *self.state[number + 1 :])
        return sums


class UpdateCritic(Protocol):
    """The function that makes one update of a critic (`Critics.update`)."""

    def __call__(
        self, batches: Sequence[ValueBatch], *, number: int, tokens: int
    ) -> Mapping[str, jax.Array]: ...


def learn_values(
    batches: Sequence[Batch], hp: CriticsHypers, algo: AlgoConfig, update: UpdateCritic
) -> dict[str, float]:
    """Updates each critic towards the returns of its own members of each group; returns figures.

    A return is the discounted sum of the rewards from a time step on, without any critic's estimate
    (R in the paper). critic_loss: mean square error over the time steps of each update, before it.
    """
    by_chunk = algo.advantage.steps_are_chunks
    of_critics: list[list[Mapping[str, jax.Array]]] = []
    return_BT = returns(batches, algo.gamma, by_chunk)
    for number in range(hp.count):
        own = [
            (critic_of(b.member_BT, hp.count) == number) & time_steps(b, by_chunk) for b in batches
        ]
        of_critics.append([])
        for some in _minibatches(batches, return_BT, own, hp.minibatches) * hp.epochs:
            tokens = int(sum(batch.own_BT.sum() for batch in some))
            of_critics[number].append(update(some, number=number, tokens=tokens))
    # A critic that has no episode makes no update.
    on_host: list[list[Mapping[str, np.ndarray]]] = list(filter(None, jax.device_get(of_critics)))
    every_sums = list(itertools.chain(*on_host))
    learned = sum(sums["tokens"] for sums in every_sums)
    if not learned:
        return {}
    return {
        "critic_loss": float(sum(sums["squares"] for sums in every_sums) / learned),
        "critic_grad_norm": float(max(sums["grad_norm"] for sums in every_sums)),
        CRITIC_SKIPPED: sum(int(sums[SKIPPED]) for sums in every_sums),
        CRITICS_WITHOUT_UPDATE: sum(all(bool(sums[SKIPPED]) for sums in own) for own in on_host),
        CRITICS_BROKEN: sum(bool(own[-1][BROKEN]) for own in on_host),
    }


def _minibatches(
    batches: Sequence[Batch],
    returns: Sequence[np.ndarray],
    own: Sequence[np.ndarray],
    count: int,
) -> list[list[ValueBatch]]:
    """Divides what a critic learns from among at most `count` updates, every n-th group to the same
    one. A share without an episode is left out. own: the time steps that it learns from."""
    shares = [
        [own_BT & (b.group_BT % count == k) for b, own_BT in zip(batches, own, strict=True)]
        for k in range(count)
    ]
    return list(filter(None, (value_batches(batches, returns, share) for share in shares)))


def value_batches(
    batches: Sequence[Batch], returns: Sequence[np.ndarray], own: Sequence[np.ndarray]
) -> list[ValueBatch]:
    """Returns the trajectories that have time steps in `own`, in as few batches as they fill."""
    chosen = select_segments([b.segment_BT for b in batches], own)
    if not chosen.moves:
        return []
    own = chosen.take(own)
    columns = (
        chosen.take([b.tokens_BT for b in batches]),
        chosen.take([b.position_BT for b in batches]),
        chosen.segments(),
        read_tokens(own),
        chosen.take(returns),
        own,
    )
    return [ValueBatch(*each) for each in zip(*columns, strict=True)]


def abstract_critics(
    hp: CriticsHypers, policy: PolicyShape, mesh: AbstractMesh | Mesh
) -> tuple[TrainState, ...]:
    """Returns shapes, types and shardings of the critics' states, as the target of a restore."""
    if not hp.count:
        return ()
    table = value_table(hp.shape(policy))
    weights = abstract_weights(table, mesh)
    optimizer = table_optimizer(hp.optimizer, table)
    return (abstract_begun(weights, weights, optimizer, mesh),) * hp.count


# A function of the module, so that all critics of one shape share one compilation.
@functools.partial(jax.jit, static_argnums=(2, 3), compiler_options=EXACT)
def _values(
    params: Params, arrays: dict[str, jax.Array], shape: PolicyShape, compute: Compute
) -> jax.Array:
    return with_rows(token_values(params, **arrays, shape=shape, compute=compute)[0])


def critic_gradient(model: ModelSpec) -> Callable[..., tuple[Params, Metrics, None]]:
    """Makes the function that `UpdateStep` calls for the gradient of one critic's loss on one
    microbatch."""

    def loss_of(
        moved: Params,
        params: Params,
        arrays: dict[str, jax.Array],
        loss_denominator: jax.Array,
        share: jax.Array,
    ) -> tuple[jax.Array, Metrics]:
        weights = with_trained(params, moved)
        rows = {name: arrays[name] for name in INPUTS if name in arrays}
        value_BT, stats = token_values(weights, **rows, shape=model.shape, compute=model.compute)
        loss, sums = critic_loss(value_BT, arrays["return_BT"], arrays["own_BT"], loss_denominator)
        balance = jnp.zeros(())
        if stats:
            router = router_sums(stats, rows["segment_BT"].reshape(-1) > 0, model.shape)
            balance = balancing_loss(router, model.shape)
        return loss + model.balance_weight * balance * share, sums | {"loss": loss}

    return lambda *args: (*jax.grad(loss_of, has_aux=True)(*args), None)
