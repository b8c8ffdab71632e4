"""Direct preference optimization (Rafailov et al. 2023, arXiv 2305.18290), with its sigmoid loss.

Of a pair, c is the chosen answer and r the rejected one, and each log pi is a sum over the learned
tokens of an answer:

    h = beta ((log pi(c) - log ref(c)) - (log pi(r) - log ref(r)))
    L = -log sigmoid(h)
    dL / d log pi(c) = -beta sigmoid(-h) = -dL / d log pi(r)

So the gradient is that of log-probabilities with a weight that each pair has from a forward pass,
and the answers of a pair need not be computed together.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

CHOSEN, REJECTED = 0, 1


class PairTerms(NamedTuple):
    """Of P pairs: h, L, and of each answer -dL / d log pi."""

    margin_P: np.ndarray
    loss_P: np.ndarray
    weight_PA: np.ndarray


def pair_terms(logp_PA: np.ndarray, reference_PA: np.ndarray, beta: float) -> PairTerms:
    """Returns the terms of pairs. logp_PA, reference_PA: of both answers, in nats, float64 [P, 2].

    An answer has become e times as probable, and the other one is as it was:

        >>> terms = pair_terms(np.array([[-4.0, -5.0]]), np.array([[-5.0, -5.0]]), beta=1.0)
        >>> [float(each[0].round(3)) for each in terms[:2]], terms.weight_PA.round(3).tolist()
        ([1.0, 0.313], [[0.269, -0.269]])
    """
    assert logp_PA.shape == reference_PA.shape and logp_PA.shape[1:] == (2,), logp_PA.shape
    gain_PA = logp_PA - reference_PA
    margin_P = beta * (gain_PA[:, CHOSEN] - gain_PA[:, REJECTED])
    weight_P = beta * np.exp(-np.logaddexp(0.0, margin_P))
    return PairTerms(margin_P, np.logaddexp(0.0, -margin_P), np.stack([weight_P, -weight_P], 1))


def weighted_logp_loss(
    logp_BT: jax.Array, advantage_BT: jax.Array, chunk_BT: jax.Array, pairs: jax.Array | float
) -> jax.Array:
    """Returns -(1 / pairs) sum_t w_t log pi(t), whose gradient is that of the mean L over pairs.
    advantage_BT: w, the weight of its answer; the tokens in chunks are learned."""
    return -jnp.where(chunk_BT >= 0, advantage_BT * logp_BT, 0.0).sum() / pairs
