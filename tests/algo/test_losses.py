"""Each loss on four tokens, by hand: two of a success, two of a failure, with the ratio above and
below 1 in each."""

import jax
import jax.numpy as jnp
import numpy as np

from ale_jax.algo.algorithm import LossHypers
from ale_jax.algo.losses import TOKEN_LOSSES, Tokens
from tests.rows import each_row

RATIO = np.array([[1.5, 0.5, 1.5, 0.5]], np.float32)
ADVANTAGE = jnp.array([[2.0, 2.0, -2.0, -2.0]])
LOGP = jnp.array([[-1.0, -2.0, -3.0, -4.0]])


def call(logp_BT, hp):
    old_BT = LOGP - jnp.log(RATIO)
    return TOKEN_LOSSES[hp.kind](Tokens(logp_BT, logp_BT - old_BT, ADVANTAGE), hp)


LN15, LN05 = np.log(1.5), np.log(0.5)


@each_row(
    "hp, loss, grad, acts",
    [
        # -A logp
        (LossHypers("vanilla"), [2, 4, -6, -8], [-2, -2, 2, 2], [0, 0, 0, 0]),
        # A = 2: min(3, 2.6), min(1, 1.6); A = -2: min(-3, -2.6), min(-1, -1.6). Clipped where the
        # ratio has already gone the way that the advantage pushes it.
        (
            LossHypers("ppo", clip_low=0.2, clip_high=0.3),
            [-2.6, -1.0, 3.0, 1.6],
            [0, -1, 3, 0],
            [1, 0, 0, 1],
        ),
        # The third's -3 is less than 1.4 * -2.
        (
            LossHypers("ppo", clip_low=0.2, clip_high=0.3, dual_clip=1.4),
            [-2.6, -1.0, 2.8, 1.6],
            [0, -1, 0, 0],
            [1, 0, 1, 1],
        ),
        # -min(r, 1) A logp
        (LossHypers("tis", ratio_cap=1.0), [2, 2, -6, -4], [-2, -1, 2, 1], [1, 0, 1, 0]),
        # The success counts whole, whatever its ratio.
        (LossHypers("topr", ratio_cap=1.0), [2, 4, -6, -4], [-2, -2, 2, 1], [0, 0, 1, 0]),
        # -clip(r, 0.8, 1.2) A logp: the clipped still have a gradient.
        (
            LossHypers("cispo", clip_low=0.2, clip_high=0.2),
            [2.4, 3.2, -7.2, -6.4],
            [-2.4, -1.6, 2.4, 1.6],
            [1, 1, 1, 1],
        ),
        # -A logp + 1/2 (log r)^2; its derivative: -A + log r
        (
            LossHypers("kimi", tau=1.0),
            [2 + LN15**2 / 2, 4 + LN05**2 / 2, -6 + LN15**2 / 2, -8 + LN05**2 / 2],
            [-2 + LN15, -2 + LN05, 2 + LN15, 2 + LN05],
            [0, 0, 0, 0],
        ),
    ],
    ids=lambda x: x.kind if isinstance(x, LossHypers) else "",
)
def test_the_four_corners_by_hand(hp, loss, grad, acts):
    found_BT, acts_BT = call(LOGP, hp)
    np.testing.assert_allclose(found_BT, [loss], rtol=1e-5)
    grad_BT = jax.grad(lambda x: call(x, hp)[0].sum())(LOGP)
    np.testing.assert_allclose(grad_BT, [grad], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(acts_BT, np.array([acts], bool))
