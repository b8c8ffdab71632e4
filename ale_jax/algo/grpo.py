"""Group Relative Policy Optimization (arXiv 2402.03300), the token-level baseline of IPA.

No KL term and no critic. The clip range is two numbers, so that the upper one can be raised
(arXiv 2503.14476).
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from ale_jax.algo import hypers
from ale_jax.algo.chunks import chunk_to_token
from ale_jax.algo.ratio import exp_log_ratio


@dataclasses.dataclass(frozen=True)
class GrpoHypers:
    """clip_low, clip_high: the ratio is clipped to [1 - clip_low, 1 + clip_high].

    scale_by_std: divide the advantage by the group's standard deviation.
    normaliser, old_logp: as in `IpaHypers`.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    scale_by_std: bool = True
    normaliser: str = "tokens"
    old_logp: str = "sampler"

    def __post_init__(self) -> None:
        hypers.require_range("clip_low", self.clip_low, 0.0, 1.0, "a ratio is never negative")
        hypers.require_range("clip_high", self.clip_high, 0.0, 1e6, "0.2 is usual")
        hypers.require_choice("normaliser", self.normaliser, hypers.NORMALISERS)
        hypers.require_choice("old_logp", self.old_logp, hypers.OLD_LOGP_SOURCES)


def grpo_loss(
    logp_BT: jax.Array,
    logp_old_BT: jax.Array,
    logp_mu_BT: jax.Array,
    chunk_BT: jax.Array,
    advantage_BC: jax.Array,
    positive_BC: jax.Array,
    normaliser: jax.Array | float,
    hp: GrpoHypers,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """-(1/Z) sum_t min(r_t A_t, clip(r_t) A_t), r_t = pi / pi_old of one token.

    Same arguments and metrics convention as `ipa_loss`. `positive_BC` plays no part, and
    `logp_mu_BT` only in the metrics.
    """
    assert logp_BT.shape == logp_old_BT.shape == logp_mu_BT.shape == chunk_BT.shape
    del positive_BC
    written_BT = chunk_BT >= 0
    advantage_BT = chunk_to_token(advantage_BC, chunk_BT)
    # Masked before exp(): where() after it would let a nan of the padding into the gradient.
    log_ratio_BT = jnp.where(written_BT, logp_BT - logp_old_BT, 0.0)
    ratio_BT = exp_log_ratio(log_ratio_BT)
    clipped_BT = jnp.clip(ratio_BT, 1.0 - hp.clip_low, 1.0 + hp.clip_high)
    gain_BT = jnp.minimum(ratio_BT * advantage_BT, clipped_BT * advantage_BT)
    loss = -gain_BT.sum() / normaliser

    metrics = {
        "tokens": written_BT.sum(),
        "clipped_tokens": (clipped_BT * advantage_BT < ratio_BT * advantage_BT).sum(),
        "ratio": jnp.where(written_BT, ratio_BT, 0.0).sum(),
        "engine_gap": jnp.where(written_BT, jnp.abs(logp_old_BT - logp_mu_BT), 0.0).sum(),
    }
    return loss, {name: value.astype(jnp.float32) for name, value in metrics.items()}
