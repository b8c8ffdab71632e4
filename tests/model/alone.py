"""What the policy says of one text alone: straight from the logits, without packing or cache."""

import jax
import numpy as np

from ale_jax.model.policy import hidden_states, logits
from tests.model.shapes import MOE


@jax.jit
def logp_after(params, ids_T):
    """Log-probabilities of every next token, [T, V], of a policy of the shape MOE."""
    position_BT = np.arange(len(ids_T))[None]
    hidden_BTD, _ = hidden_states(params, ids_T[None], position_BT, np.ones_like(position_BT), MOE)
    return jax.nn.log_softmax(logits(params, hidden_BTD)[0])
