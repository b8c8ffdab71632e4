"""The critics of a run: their values, the credit that follows, and how they learn (AsyPPO, PPO).

M critics of one shape share one compiled program; one after the other is run, so that only one's
activations are alive. See `ale_jax.algo.values` for the method and its source.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from ale_jax.algo.hypers import require_range
from ale_jax.algo.values import agreement_masks, critic_loss, critic_of, explained_variance, gae
from ale_jax.data.selection import select_segments
from ale_jax.learn.state import (
    OptimizerHypers,
    TrainState,
    abstract_begun,
    abstract_weights,
    begin,
    table_optimizer,
)
from ale_jax.learn.step import Metrics, make_update_step, to_device
from ale_jax.model.compute import EXACT, FLOAT32, Compute
from ale_jax.model.lora import merged
from ale_jax.model.moe import balancing_loss, router_sums
from ale_jax.model.params import Params, init_table
from ale_jax.model.policy import HEAD, token_values, value_table
from ale_jax.model.shape import PolicyShape
from ale_jax.model.sharding import table_shardings
from ale_jax.records import Batch

# All batches of a step -> the same, with other advantages.
ScaleAdvantages = Callable[[list[Batch]], list[Batch]]
SIZES = ("width", "num_layers", "num_heads", "num_kv_heads", "head_width", "mlp_width")


@dataclasses.dataclass(frozen=True)
class CriticsHypers:
    """The critics, dense but for those of the policy's own shape; all else is as in the policy.

    count: how many; 0: none, then nothing else is read. 1 with both shares 0 is plain PPO.
    width: numbers per token of the residual stream. This and the five sizes below 0: the policy's
    own shape, experts
        included, and its weights to start from.
    num_layers: decoder layers.
    num_heads: query heads.
    num_kv_heads: heads of keys and values.
    head_width: numbers per head.
    mlp_width: inner width of the feed-forward.
    lam: lambda of GAE.
    mask_share: the share of a step's policy tokens that lose their advantage, those where the
        critics agree most.
    entropy_share: the share that loses its entropy bonus, those where the critics differ most.
    warmup_steps: so many steps only the critics learn.
    """

    count: int = 0
    width: int = 0
    num_layers: int = 0
    num_heads: int = 0
    num_kv_heads: int = 0
    head_width: int = 0
    mlp_width: int = 0
    lam: float = 1.0
    mask_share: float = 0.0
    entropy_share: float = 0.0
    warmup_steps: int = 0
    optimizer: OptimizerHypers = dataclasses.field(default_factory=OptimizerHypers)

    def __post_init__(self) -> None:
        require_range("count", self.count, 0, 64, "2 is usual, 1 for PPO, 0 for none")
        sizes = [getattr(self, name) for name in SIZES]
        if not (all(size > 0 for size in sizes) or not any(sizes)):
            raise ValueError(
                f"{', '.join(SIZES)} are {sizes}: all must be at least 1, or all 0 for critics of "
                "the policy's own shape"
            )
        require_range("lam", self.lam, 0.0, 1.0, "1 trusts the rewards alone, 0 the critics")
        for name in ("mask_share", "entropy_share"):
            require_range(name, getattr(self, name), 0.0, 1.0, "it is a share of the tokens")
            if getattr(self, name) > 0 and self.count < 2:
                raise ValueError(
                    f"{name} {getattr(self, name)} needs critics that can differ: set count to 2 "
                    f"or more, or {name} to 0.0"
                )
        require_range("warmup_steps", self.warmup_steps, 0, 1 << 30, "0 starts all at once")

    def check_group(self, group_size: int) -> None:
        """ValueError unless a prompt's responses can be divided evenly among the critics."""
        if self.count and group_size % self.count:
            raise ValueError(
                f"rl.group_size {group_size} cannot be divided evenly among {self.count} critics: "
                f"set it to {-(-group_size // self.count) * self.count}, or change critics.count"
            )

    def shape(self, policy: PolicyShape) -> PolicyShape:
        """Of each critic."""
        if not self.width:
            return policy
        sizes = {name: getattr(self, name) for name in SIZES}
        return dataclasses.replace(policy, num_experts=0, dense_layers=(), **sizes)


@dataclasses.dataclass(frozen=True)
class Rows:
    """What a critic reads, in the form of a `Batch`."""

    tokens_BT: np.ndarray
    position_BT: np.ndarray
    segment_BT: np.ndarray


@dataclasses.dataclass(frozen=True)
class ValueBatch(Rows):
    """What it learns: the return of each token, of its own ones."""

    return_BT: np.ndarray
    own_BT: np.ndarray


class Critics:
    """state: of each critic its weights and moments; a checkpoint saves it, and a run that goes on
    puts it back."""

    def __init__(
        self,
        hp: CriticsHypers,
        shape: PolicyShape,
        state: tuple[TrainState, ...],
        gamma: float,
        mesh: Mesh,
        compute: Compute = FLOAT32,
        balance_weight: float = 0.0,
    ):
        """gamma: discount per policy token. balance_weight: of the router's loss, if the critics
        have experts."""
        self.state = state
        self._hp, self._shape, self._gamma = hp, shape, gamma
        self._mesh, self._compute = mesh, compute
        optimizer = table_optimizer(hp.optimizer, value_table(shape))
        gradient_of = critic_gradient(shape, balance_weight, compute)
        self._step = make_update_step(gradient_of, optimizer, state[0].params, mesh)

    @classmethod
    def make(
        cls,
        hp: CriticsHypers,
        policy: PolicyShape,
        params: Params,
        gamma: float,
        key: jax.Array,
        mesh: Mesh,
        compute: Compute = FLOAT32,
        balance_weight: float = 0.0,
    ) -> Critics:
        """New critics, each of other random weights; of the policy's shape, they start as `params`
        with a head that says 0. ValueError if the mesh cannot divide them."""
        shape = hp.shape(policy)
        table = value_table(shape)
        optimizer = table_optimizer(hp.optimizer, table)
        places = table_shardings(table, mesh)
        draw = jax.jit(lambda key: init_table(key, table), out_shardings=places)
        states = []
        for number in range(hp.count):
            weights = draw(jax.random.fold_in(key, number))
            if shape == policy:
                trunk = merged(params)
                weights |= {name: trunk[name] for name in table if name != HEAD}
                weights = jax.device_put(weights, places)
            states.append(begin(weights, optimizer, mesh))
        return cls(hp, shape, tuple(states), gamma, mesh, compute, balance_weight)

    @property
    def warming_up(self) -> bool:
        """Whether the policy is still to wait for them. Counted by the critics' own updates."""
        return max(int(state.step) for state in self.state) < self._hp.warmup_steps

    def values(self, batches: Sequence[Batch]) -> list[np.ndarray]:
        """What each critic expects before each token, float32 [Q, B, T] of each batch."""
        found = []
        with jax.set_mesh(self._mesh):
            for batch in batches:
                rows = Rows(batch.tokens_BT, batch.position_BT, batch.segment_BT)
                arrays = to_device(rows, self._mesh)
                every = [_values(s.params, arrays, self._shape, self._compute) for s in self.state]
                found.append(every)
        return [np.stack(every) for every in jax.device_get(found)]

    def credit(
        self, batches: Sequence[Batch], scale: ScaleAdvantages = list
    ) -> tuple[list[Batch], dict[str, float]]:
        """The batches with GAE on the mean value as their advantage, 0 where the critics agree, and
        without entropy bonus where they differ most; figures of the values.

        scale: what is done to the step's advantages (`credit.scale_advantages`) before they
        are masked: behind it a mean that is taken off would undo the mask. Call this before
        `learn`: critics that have seen a return find that nothing is left to be taught.
        """
        if not batches:
            return [], {}
        values = self.values(batches)
        means = [value_QBT.mean(axis=0) for value_QBT in values]
        written = [batch.chunk_BT >= 0 for batch in batches]
        spread_t = _pick([value_QBT.std(axis=0) for value_QBT in values], written)
        hp = self._hp
        teaches_t, explores_t = agreement_masks(spread_t, hp.mask_share, hp.entropy_share)
        plain = [
            dataclasses.replace(b, advantage_BT=self._advantage(b, mean_BT, hp.lam))
            for b, mean_BT in zip(batches, means, strict=True)
        ]
        credited = []
        for batch, action_mask_BT, tokens in zip(
            scale(plain), written, _places(written), strict=True
        ):
            teaches_BT = _on_tokens(teaches_t[tokens], action_mask_BT)
            fields = {"advantage_BT": np.where(teaches_BT, batch.advantage_BT, np.float32(0.0))}
            if hp.entropy_share:
                before_BT = np.float32(1.0) if batch.entropy_BT is None else batch.entropy_BT
                explores_BT = _on_tokens(explores_t[tokens], action_mask_BT)
                fields["entropy_BT"] = np.where(explores_BT, before_BT, np.float32(0.0))
            credited.append(dataclasses.replace(batch, **fields))
        return_t = _pick(self._returns(batches), written)
        return credited, {
            "critic_explained_variance": explained_variance(_pick(means, written), return_t),
            "critic_spread": float(spread_t.mean()),
            "advantage_masked": float(1.0 - teaches_t.mean()),
            "entropy_masked": float(1.0 - explores_t.mean()),
        }

    def learn(self, batches: Sequence[Batch]) -> dict[str, float]:
        """One update of each critic towards the returns of its own members of each group: the
        discounted sum of what was rewarded from a token on, by no critic's estimate (R of the
        paper). critic_loss: mean square error before it, over all policy tokens."""
        returns = self._returns(batches)
        states, every_sums = [], []
        for number, state in enumerate(self.state):
            value_batches = self._value_batches(batches, returns, number)
            if value_batches:  # else no response of this step is for this critic
                tokens = np.float32(sum(value_batch.own_BT.sum() for value_batch in value_batches))
                state, sums = self._step(state, value_batches, tokens)
                every_sums.append(sums)
            states.append(state)
        self.state = tuple(states)
        every_sums = jax.device_get(every_sums)
        tokens = sum(sums["tokens"] for sums in every_sums)
        if not tokens:
            return {}
        return {
            "critic_loss": float(sum(sums["squares"] for sums in every_sums) / tokens),
            "critic_grad_norm": float(max(sums["grad_norm"] for sums in every_sums)),
        }

    def _value_batches(
        self, batches: Sequence[Batch], returns: Sequence[np.ndarray], number: int
    ) -> list[ValueBatch]:
        """The trajectories of one critic alone, in as few batches as they fill."""
        own = [
            (critic_of(b.member_BT, self._hp.count) == number) & (b.chunk_BT >= 0) for b in batches
        ]
        chosen = select_segments([b.segment_BT for b in batches], own)
        if not chosen.moves:
            return []
        columns = (
            chosen.take([b.tokens_BT for b in batches]),
            chosen.take([b.position_BT for b in batches]),
            chosen.segments(),
            chosen.take(returns),
            chosen.take(own),
        )
        return [ValueBatch(*each) for each in zip(*columns, strict=True)]

    def _returns(self, batches: Sequence[Batch]) -> list[np.ndarray]:
        return [self._advantage(b, np.zeros_like(b.reward_BT), 1.0) for b in batches]

    def _advantage(self, batch: Batch, value_BT: np.ndarray, lam: float) -> np.ndarray:
        rows = batch.reward_BT, batch.chunk_BT, batch.segment_BT
        return np.asarray(_gae(value_BT, *rows, self._gamma, lam)[0])


def abstract_critics(hp: CriticsHypers, policy: PolicyShape, mesh: Mesh) -> tuple[TrainState, ...]:
    """Shape, type and place of all that the critics' states hold, for a checkpoint to be read
    into."""
    if not hp.count:
        return ()
    table = value_table(hp.shape(policy))
    weights = abstract_weights(table, mesh)
    state = abstract_begun(weights, weights, table_optimizer(hp.optimizer, table), mesh)
    return (state,) * hp.count


def _pick(arrays: Sequence[np.ndarray], written: Sequence[np.ndarray]) -> np.ndarray:
    """The policy tokens' part of all batches, one after the other."""
    return np.concatenate([a_BT[w_BT] for a_BT, w_BT in zip(arrays, written, strict=True)])


def _places(written: Sequence[np.ndarray]) -> list[slice]:
    """Where each batch's tokens lie in what `_pick` gives."""
    ends = np.cumsum([action_mask_BT.sum() for action_mask_BT in written])
    return [slice(end - w_BT.sum(), end) for end, w_BT in zip(ends, written, strict=True)]


def _on_tokens(mask_t: np.ndarray, action_mask_BT: np.ndarray) -> np.ndarray:
    """A mask of a batch's policy tokens where they stand; True elsewhere."""
    mask_BT = np.ones(action_mask_BT.shape, bool)
    mask_BT[action_mask_BT] = mask_t
    return mask_BT


_gae = jax.jit(gae, static_argnums=(4, 5))


# Of the module: all critics of one shape share one compilation.
@functools.partial(jax.jit, static_argnums=(2, 3), compiler_options=EXACT)
def _values(
    params: Params, arrays: dict[str, jax.Array], shape: PolicyShape, compute: Compute
) -> jax.Array:
    return token_values(params, **arrays, shape=shape, compute=compute)[0]


def critic_gradient(
    shape: PolicyShape, balance_weight: float, compute: Compute
) -> Callable[..., tuple[Params, Metrics]]:
    """For `make_update_step`: the gradient of one critic's loss on one microbatch."""

    def loss_of(moved, params, arrays, loss_denominator, share):
        del params  # all of a critic is moved
        rows = {name: arrays[name] for name in ("tokens_BT", "position_BT", "segment_BT")}
        value_BT, stats = token_values(moved, **rows, shape=shape, compute=compute)
        loss, sums = critic_loss(value_BT, arrays["return_BT"], arrays["own_BT"], loss_denominator)
        balance = jnp.zeros(())
        if stats:
            router = router_sums(stats, rows["segment_BT"].reshape(-1) > 0, shape)
            balance = balancing_loss(router, shape)
        return loss + balance_weight * balance * share, sums

    return jax.grad(loss_of, has_aux=True)
