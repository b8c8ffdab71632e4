"""What shows that routing collapses: how unevenly, and how surely, the router chooses experts."""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import numpy as np

from ale_jax.model.moe import RouterSums

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
