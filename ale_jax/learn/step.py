"""One training step (gradients summed over microbatches of a fixed shape, then one update) and its
diagnostics."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ale_jax.algo.policy_loss import policy_loss
from ale_jax.config.algo import AlgoConfig
from ale_jax.config.architecture import PolicyShape
from ale_jax.config.learn import Shape
from ale_jax.config.model import FLOAT32, FULL, Compute, LoraShape
from ale_jax.data.packing import Sample, pack
from ale_jax.learn.rows import to_device
from ale_jax.learn.state import TrainState, abstract_trained
from ale_jax.learn.update import Update
from ale_jax.model.compute import EXACT
from ale_jax.model.guides import SamplingMasks
from ale_jax.model.lora import trained, with_trained
from ale_jax.model.moe import RouterSums, balancing_loss, router_sums
from ale_jax.model.params import Params
from ale_jax.model.policy import Asked, TokenScores, hidden_states, score_tokens
from ale_jax.model.reading import read_here
from ale_jax.model.rounded import abstract_rounded, rounded, with_rounded
from ale_jax.model.sharding import batch_sharding
from ale_jax.records import Batch, Trajectory

Metrics = dict[str, jax.Array]
Total = tuple[Params, Metrics]  # gradient and metrics of the microbatches until now
# (state, microbatches, loss_denominator) -> (state, sums for the metrics, figures of the tokens of
# each microbatch)
TrainStep = Callable[
    [TrainState, Sequence[Any], float | np.float32], tuple[TrainState, Metrics, list[Any]]
]
# (scores, arrays of the batch, loss_denominator) -> (loss, sums for the metrics)
LossFn = Callable[[TokenScores, dict[str, jax.Array], jax.Array], tuple[jax.Array, Metrics]]


def make_loss(algo: AlgoConfig, chunks_per_pack: int) -> LossFn:
    """Makes the loss for `make_train_step`. chunks_per_pack: of the batches' shape."""

    def loss_fn(
        scores: TokenScores, arrays: dict[str, jax.Array], loss_denominator: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        assert not (algo.loss.observation_weight and "read_BR" in arrays), "observations are read"
        if scores.logp_top_BTk is not None:
            arrays = arrays | {"logp_top_BTk": scores.logp_top_BTk}
        return policy_loss(
            scores.logp_BT,
            scores.entropy_BT,
            arrays,
            loss_denominator,
            chunks_per_pack,
            algo.loss,
            algo.mismatch,
        )

    return loss_fn


class TokenUpdate(NamedTuple):
    """What an update was to each token of a microbatch, float32 [B, T].

    logp_BT: log pi of the weights that the update started from. credit_BT: what the gradient of
    log pi was multiplied by, -Z dL / d log pi, where Z is the loss denominator of the step. A
    positive credit raises the token's probability.
    """

    logp_BT: jax.Array
    credit_BT: jax.Array


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """A model as it is trained: all that its programs depend on besides its weights.

    compute: types of its arithmetic. lora: the adapters, if they alone are trained.
    balance_weight: factor of the router's balancing loss, for a mixture of experts.
    """

    shape: PolicyShape
    mesh: Mesh
    compute: Compute = FLOAT32
    lora: LoraShape = FULL
    balance_weight: float = 0.0


def forward(
    params: Params,
    batch: dict[str, jax.Array],
    shape: PolicyShape,
    compute: Compute = FLOAT32,
    top: int = 0,
) -> tuple[TokenScores, RouterSums | None]:
    """Scores the tokens of a packed batch, those of its read_BR if it has them, and returns the
    scores and the router's statistics (None for a dense policy). top: as in `Asked`."""
    tokens_BT, position_BT, segment_BT = (
        batch["tokens_BT"],
        batch["position_BT"],
        batch["segment_BT"],
    )
    replay_BTLK, read_BR = batch.get("expert_BTLK"), read_here(batch.get("read_BR"))
    hidden_BTD, stats = hidden_states(
        params, tokens_BT, position_BT, segment_BT, shape, compute, replay_BTLK, read_BR
    )
    masks = None
    if batch.get("mask_id_BT") is not None:
        masks = SamplingMasks(batch["mask_id_BT"], batch["mask_BIw"])
    asked = Asked(masks, batch.get("temperature_BT"), batch.get("top_id_BTk"), top)
    cap = shape.logit_cap
    scores = score_tokens(params, tokens_BT, hidden_BTD, position_BT, asked, cap, read_BR)
    if not stats:
        return scores, None
    return scores, router_sums(stats, segment_BT.reshape(-1) > 0, shape)


def make_train_step(
    model: ModelSpec, optimizer: optax.GradientTransformation, loss_fn: LossFn
) -> TrainStep:
    """Makes a function (state, microbatches, loss_denominator) -> (state, metrics, `TokenUpdate` of
    each microbatch). It donates the moments of the old state, but not the weights, because the
    engine samples with them until the next publish.

    The loss of each microbatch is a sum over its tokens, divided by the `loss_denominator` of the
    whole step, so that a different division into microbatches changes nothing but rounding. (Only
    the balancing loss of a mixture of experts is computed per microbatch, and averaged.) Metrics
    are sums, replicated; the figures of tokens are sharded like their rows. Both are still on the
    device; reading them blocks until the step is done.

    An update with a loss or gradient that is not finite is not applied: the state stays as it was,
    and the metrics say so, as they say if a weight is not finite (learn/finite.py).
    """
    weights = abstract_trained(model.shape, model.lora, model.mesh)
    dtype = model.compute.compute_dtype
    return UpdateStep(gradient_function(model, loss_fn), optimizer, weights, model.mesh, dtype)


class UpdateStep:
    """A `TrainStep` for any gradient.

    gradient: of a microbatch that is alone, with its metrics. add_gradient: adds both to a total,
    which are zeros if there is one microbatch whose form it is compiled for already; it is given
    weights that are rounded once for all microbatches. update: of weights and moments by the total.
    All are compiled, and reuse the memory of the totals and moments that they are given.
    """

    def __init__(
        self,
        gradient_of: Callable[..., tuple[Params, Metrics, Any]],
        optimizer: optax.GradientTransformation,
        weights: Params,
        mesh: Mesh,
        dtype: str = "float32",
    ):
        """weights: those trained, or their abstract form. dtype: of products with them."""
        self._mesh, self._dtype = mesh, dtype
        self._rounded: Callable[[Params], Params] | None = None
        # Metrics are replicated, because every process reads them; each token stays with its row.
        everywhere = NamedSharding(mesh, PartitionSpec())
        trained_places = jax.tree.map(lambda w: w.sharding, weights)
        totals = trained_places, everywhere

        def exact_gradient(*args: Any) -> tuple[Params, Metrics, Any]:
            grads, sums, tokens = gradient_of(*args)
            return jax.tree.map(lambda each: each.astype(jnp.float32), grads), sums, tokens

        @functools.partial(jax.jit, out_shardings=totals)
        def nothing(*args: Any) -> Total:
            *total, _ = jax.eval_shape(exact_gradient, *args)
            return jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), tuple(total))

        compiled = functools.partial(
            jax.jit, out_shardings=(totals, batch_sharding(mesh)), compiler_options=EXACT
        )

        @compiled
        def gradient(*args: Any) -> tuple[Total, Any]:
            grads, sums, tokens = exact_gradient(*args)
            return (grads, sums), tokens

        @functools.partial(compiled, donate_argnums=0)
        def add_gradient(total: Total, *args: Any) -> tuple[Total, Any]:
            grads, sums, tokens = exact_gradient(*args)
            return jax.tree.map(jnp.add, total, (grads, sums)), tokens

        self.nothing, self.gradient, self.add_gradient = nothing, gradient, add_gradient
        self._added: set[tuple[tuple[int, ...], ...]] = set()
        self.update = Update(optimizer, weights, mesh)

    def __call__(
        self, state: TrainState, batches: Sequence[Any], loss_denominator: float | np.float32
    ) -> tuple[TrainState, Metrics, list[Any]]:
        moved = trained(state.params)
        with jax.set_mesh(self._mesh):
            (grads, sums), every_tokens = self._summed(state.params, batches, loss_denominator)
            moved, opt_state, step, more = self.update(
                grads, state.opt_state, moved, state.step, sums["loss"]
            )
        params = with_trained(state.params, moved)
        return TrainState(params, opt_state, step), sums | more, every_tokens

    def _summed(
        self, params: Params, batches: Sequence[Any], loss_denominator: float | np.float32
    ) -> tuple[Total, list[Any]]:
        """Sums gradient and metrics over microbatches. Also returns the figures of tokens."""
        share = 1.0 / len(batches)
        total: Total | None = None
        weights: tuple[Params, Params] | None = None
        every_tokens: list[Any] = []
        for batch in batches:
            arrays = to_device(batch, self._mesh)
            form, rest = tuple(x.shape for x in arrays.values()), (arrays, loss_denominator, share)
            if len(batches) == 1 and form not in self._added:
                total, tokens = self.gradient(trained(params), params, *rest)
            else:
                self._added.add(form)
                weights = weights or self._ready(params)
                total = total or self.nothing(*weights, *rest)
                total, tokens = self.add_gradient(total, *weights, *rest)
            every_tokens.append(tokens)
        assert total is not None, "a step without microbatches"
        return total, every_tokens

    def _ready(self, params: Params) -> tuple[Params, Params]:
        """Returns the weights that `add_gradient` is given, those trained and all."""
        if self._dtype == "float32":
            return trained(params), params
        if self._rounded is None:
            places = jax.tree.map(lambda x: x.sharding, abstract_rounded(params, self._dtype))
            round_all = functools.partial(rounded, dtype=self._dtype)
            self._rounded = jax.jit(round_all, out_shardings=places)
        return with_rounded(params, self._rounded(params))


def gradient_function(
    model: ModelSpec, loss_fn: LossFn
) -> Callable[..., tuple[Params, Metrics, TokenUpdate]]:
    """Makes a function (trained weights, all weights, arrays, loss_denominator, share of the step's
    microbatches) -> (gradient with respect to the trained weights, metrics, figures of tokens)."""

    def loss_of(
        moved: Params,
        shift_BT: jax.Array,
        params: Params,
        arrays: dict[str, jax.Array],
        loss_denominator: jax.Array,
        share: jax.Array,
    ) -> tuple[jax.Array, tuple[Metrics, jax.Array]]:
        weights = with_trained(params, moved)
        scores, router = forward(weights, arrays, model.shape, model.compute)
        scores = scores._replace(logp_BT=scores.logp_BT + shift_BT)
        loss, sums = loss_fn(scores, arrays, loss_denominator)
        balance = balancing_loss(router, model.shape) if router else jnp.zeros(())
        action_mask_BT = arrays["chunk_BT"] >= 0
        sums = sums | {
            "loss": loss,
            "balance": balance * share,
            "entropy": jnp.where(action_mask_BT, scores.entropy_BT, 0.0).sum(),
            "best": jnp.where(action_mask_BT, scores.best_BT, False).sum(),
        }
        sums |= router_metrics(router) if router else {}
        return loss + model.balance_weight * balance * share, (sums, scores.logp_BT)

    def gradient_of(
        moved: Params,
        params: Params,
        arrays: dict[str, jax.Array],
        loss_denominator: jax.Array,
        share: jax.Array,
    ) -> tuple[Params, Metrics, TokenUpdate]:
        # A shift of 0 in the log-probabilities. The gradient with respect to it is what the
        # backward pass multiplies the gradient of log pi by, at no further cost.
        shift_BT = jnp.zeros(arrays["chunk_BT"].shape, jnp.float32)
        (grads, by_logp_BT), (sums, logp_BT) = jax.grad(loss_of, (0, 1), has_aux=True)(
            moved, shift_BT, params, arrays, loss_denominator, share
        )
        return grads, sums, TokenUpdate(logp_BT, -loss_denominator * by_logp_BT)

    return gradient_of


def fresh_batches(trajectories: Iterable[Trajectory], version: int, shape: Shape) -> list[Batch]:
    """Packs one batch of trajectories that only `version` sampled, as many as fit; [] if there are
    none.

    For other trajectories the engine's cache held keys and values of older weights. (A change of
    the weights while the first prompt was read is not detected, and affects the scores.) The batch
    has no credit, because it is only scored.
    """
    fresh = [
        Sample.of(t, np.zeros(len(t.turns) - t.num_prefix_turns, np.float32))
        for t in trajectories
        if (sampled := t.turns[t.num_prefix_turns :])
        and all((s.version == version).all() for s in sampled)
    ]
    return [pack(fresh, shape)[0]] if fresh else []


def train_rollout_logp_diff(
    batches: Sequence[Batch], train_logp_BT: Sequence[np.ndarray]
) -> dict[str, float]:
    """Returns |log pi (learner) - log pi (engine)| over policy tokens: train_rollout_logp_diff, its
    mean, and train_rollout_logp_diff_max. {} without batches.

    train_logp_BT: for each batch, the learner's values of logp_old_BT.
    """
    gaps = [
        np.abs(learner_BT - engine.logp_old_BT)[engine.chunk_BT >= 0]
        for engine, learner_BT in zip(batches, train_logp_BT, strict=True)
    ]
    if not gaps:
        return {}
    gap_U = np.concatenate(gaps)
    return {
        "train_rollout_logp_diff": float(gap_U.mean()),
        "train_rollout_logp_diff_max": float(gap_U.max()),
    }


def logp_diff_limit(compute: Compute, eight_bits: bool) -> float:
    """Returns the mean difference above which it is not rounding: a hundred times what the tests
    allow in float32 (1e-5) and bfloat16 (1e-3).

    eight_bits: the sampler stores weights, keys or values in 8 bits, for which the tests allow
    more.
    """
    return 1e-3 if compute.compute_dtype == "float32" and not eight_bits else 1e-1


LOAD, ENTROPY, CHOICES = "router_load_LE", "router_entropy", "router_choices"


def router_metrics(sums: RouterSums) -> dict[str, jax.Array]:
    """Sums the router's statistics of a microbatch, so that they add up: tokens per layer and
    expert; router entropies divided by log E; and the number of these entropies."""
    L, E = sums.prob_LE.shape
    return {
        LOAD: sums.chosen_LKE.sum(axis=1),
        ENTROPY: sums.entropy_L.sum() / math.log(max(E, 2)),  # one expert has entropy 0
        CHOICES: sums.tokens * L,
    }


def router_figures(sums: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Returns the router's metrics of a step, from its summed `router_metrics`; {} for a dense
    policy.

    router_load_max, _mean: tokens of the busiest expert, divided by the mean of its layer, as the
    maximum and the mean over layers; 1 is perfect balance, E / K the worst case. router_unused: the
    share of experts that no token chose. router_entropy: mean over tokens and layers; 1 means
    undecided among all experts, 0 certain of one.

    Two experts got 6 and 2 tokens of one layer, and the entropies of its 8 choices add up to 4:

        >>> sums = {LOAD: np.array([[6, 2]]), ENTROPY: 4.0, CHOICES: 8.0}
        >>> figures = router_figures(sums)
        >>> figures["router_load_max"], figures["router_unused"], figures["router_entropy"]
        (1.5, 0.0, 0.5)
    """
    if LOAD not in sums:
        return {}
    load_LE = np.asarray(sums[LOAD], np.float64)
    busiest_L = load_LE.max(axis=1) / load_LE.mean(axis=1)
    return {
        "router_load_max": float(busiest_L.max()),
        "router_load_mean": float(busiest_L.mean()),
        "router_unused": float((load_LE == 0).mean()),
        "router_entropy": float(sums[ENTROPY] / sums[CHOICES]),
    }
