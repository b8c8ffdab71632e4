"""Two diagnostics of a step: train against rollout log-probabilities, and router collapse.

The learner and the engine are two programs with the same weights, so their log-probabilities should
agree to rounding. The router figures say how unevenly and how confidently experts are chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import jax
import numpy as np

from ale_jax.data.packing import Sample, Shape, pack
from ale_jax.model.compute import Compute
from ale_jax.model.moe import RouterSums
from ale_jax.records import Batch, Trajectory


def fresh_batches(trajectories: Iterable[Trajectory], version: int, shape: Shape) -> list[Batch]:
    """One batch of trajectories that `version` wrote alone, as many as it holds; none without any.

    For others the engine's cache held what older weights had read. (If the weights changed while
    the first prompt was read, that shows.) The batch has no credit: it is there to be scored.
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
    """Of |log pi (learner) - log pi (engine)| per policy token: train_rollout_logp_diff, the mean,
    and train_rollout_logp_diff_max. {} without batches.

    train_logp_BT: of each batch, what its logp_old_BT is by the learner.
    """
    gaps = [
        np.abs(learner_BT - engine.logp_old_BT)[engine.chunk_BT >= 0]
        for engine, learner_BT in zip(batches, train_logp_BT, strict=True)
    ]
    if not gaps:
        return {}
    gap_t = np.concatenate(gaps)
    return {
        "train_rollout_logp_diff": float(gap_t.mean()),
        "train_rollout_logp_diff_max": float(gap_t.max()),
    }


def logp_diff_limit(compute: Compute, eight_bits: bool) -> float:
    """A mean gap beyond this is no rounding: a hundred times what the tests allow in float32 (1e-5)
    and bfloat16 (1e-3). eight_bits: weights, keys or values of the sampler are stored so, for which
    they allow more."""
    return 1e-3 if compute.dtype == "float32" and not eight_bits else 1e-1


LOAD, ENTROPY, CHOICES = "router_load_LE", "router_entropy", "router_choices"


def router_metrics(sums: RouterSums) -> dict[str, jax.Array]:
    """A microbatch's part, that adds up: tokens per layer and expert; entropies over log E; and how
    many of these there are."""
    L, E = sums.prob_LE.shape
    return {
        LOAD: sums.chosen_LKE.sum(axis=1),
        ENTROPY: sums.entropy_L.sum() / math.log(max(E, 2)),  # a single expert's entropy is 0
        CHOICES: sums.tokens * L,
    }


def router_figures(sums: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The figures of a step out of its summed `router_metrics`; none if the policy is dense.

    router_load_max, _mean: the busiest expert's tokens over the mean of its layer, in the layer
    where that is largest, and on average; 1 is perfect balance, E / K the worst there is.
    router_unused: share of experts that no token chose. router_entropy: mean over tokens and
    layers; 1 is undecided among all experts, 0 sure of one.
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
