"""Estimators of KL(pi || ref) from one token that pi drew (Schulman 2020): d = log pi - log ref.

k1 = d; k2 = d^2 / 2; k3 = exp(-d) - 1 + d. k1 and k3 have the right mean, k3 is never negative. As
a loss the gradients matter: that of k1 has the mean 0 whatever the reference is; that of k2, d
times the gradient of log pi, has in the mean the gradient of KL(pi || ref); that of k3 the one of
KL(ref || pi).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

# A token that the policy has all but abandoned, d far below 0, has k3 = ref / pi, without bound: so
# its gradient would own the step. There k3 is constant beyond this.
MAX_K3 = 10.0


def divergence(logp_BT: jax.Array, logp_ref_BT: jax.Array, estimator: str) -> jax.Array:
    """The estimate of each token, with its gradient by `logp_BT`."""
    d_BT = logp_BT - logp_ref_BT
    if estimator == "k1":
        return d_BT
    if estimator == "k2":
        return 0.5 * d_BT**2
    assert estimator == "k3", estimator
    # Bounded before exp() as well: else inf times the 0 of the bound would be nan.
    k3_BT = jnp.expm1(jnp.clip(-d_BT, None, 2.0 * MAX_K3)) + d_BT
    return jnp.where(d_BT < 0.0, jnp.minimum(k3_BT, MAX_K3), k3_BT)
