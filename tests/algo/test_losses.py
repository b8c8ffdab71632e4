"""Each loss on four tokens, by hand: two of a success, two of a failure, with the ratio above and
below 1 in each."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ale_jax.algo.losses import TOKEN_LOSSES, Tokens, count_loss_denominator
from ale_jax.config.loss import LossHypers
from ale_jax.records import Batch
from tests.rows import each_row

RATIO = np.array([[1.5, 0.5, 1.5, 0.5]], np.float32)
ADVANTAGE = jnp.array([[2.0, 2.0, -2.0, -2.0]])
LOGP = jnp.array([[-1.0, -2.0, -3.0, -4.0]])


def call(logp_BT, hp):
    old_BT = LOGP - jnp.log(RATIO)
    return TOKEN_LOSSES[hp.kind](Tokens(logp_BT, logp_BT - old_BT, ADVANTAGE), hp)


LN15, LN05 = np.log(1.5), np.log(0.5)


def gate(ratio, tau):
    """SAPO's f(r) and its derivative by log r."""
    share = 1 / (1 + np.exp(-tau * (ratio - 1)))
    return 4 / tau * share, 4 * share * (1 - share) * ratio


F15, F05, G15, G05 = gate(1.5, 1.0), gate(0.5, 1.0), gate(1.5, 2.0), gate(0.5, 2.0)


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
        # The first has become 1.5 times as likely, which is beyond the bound.
        (
            LossHypers("topr", ratio_cap=1.0, clip_high=0.4),
            [0, 4, -6, -4],
            [0, -2, 2, 1],
            [1, 0, 1, 0],
        ),
        (
            LossHypers("topr", ratio_cap=1.0, clip_high=0.6),
            [2, 4, -6, -4],
            [-2, -2, 2, 1],
            [0, 0, 1, 0],
        ),
        # The fourth has become half as likely.
        (
            LossHypers("topr", ratio_cap=1.0, clip_low=0.4),
            [2, 4, -6, 0],
            [-2, -2, 2, 0],
            [0, 0, 1, 1],
        ),
        (
            LossHypers("topr", ratio_cap=1.0, clip_low=0.6),
            [2, 4, -6, -4],
            [-2, -2, 2, 1],
            [0, 0, 1, 0],
        ),
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
        # -f(r) A, steeper where A < 0
        (
            LossHypers("sapo", tau=1.0, tau_negative=2.0),
            [-2 * F15[0], -2 * F05[0], 2 * G15[0], 2 * G05[0]],
            [-2 * F15[1], -2 * F05[1], 2 * G15[1], 2 * G05[1]],
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


@each_row("kind", ["tis", "topr"])
def test_a_ratio_of_one_but_for_rounding_is_not_called_clipped(kind):
    log_ratio_BT = jnp.array([[1e-6, 1e-3]])
    tokens = Tokens(log_ratio_BT, log_ratio_BT, jnp.array([[-1.0, -1.0]]))
    acts_BT = TOKEN_LOSSES[kind](tokens, LossHypers(kind, ratio_cap=1.0))[1]
    np.testing.assert_array_equal(acts_BT, [[False, True]])


def test_sapos_gate_lies_between_the_plain_ratio_and_a_hard_gate():
    """Its gradient is r A without steepness, and with much of it that of tokens at r = 1 alone."""
    ratio_BT = np.array([[0.25, 0.9, 1.0, 1.1, 4.0]], np.float32)
    advantage_BT = np.array([[2.0, -2.0, 2.0, -2.0, -2.0]], np.float32)

    def push(tau):
        def loss(log_ratio_BT):
            tokens = Tokens(log_ratio_BT, log_ratio_BT, jnp.asarray(advantage_BT))
            return TOKEN_LOSSES["sapo"](tokens, LossHypers("sapo", tau=tau, tau_negative=tau))[0]

        return -jax.grad(lambda x: loss(x).sum())(jnp.log(ratio_BT))

    np.testing.assert_allclose(push(1e-3), ratio_BT * advantage_BT, rtol=1e-5)
    np.testing.assert_allclose(push(500.0), [[0, 0, 2.0, 0, 0]], atol=1e-6)
    np.testing.assert_allclose(push(1.0), gate(ratio_BT, 1.0)[1] * advantage_BT, rtol=1e-5)


def test_the_denominator_counts_what_the_policy_wrote():
    def batch(chunk_BT, segment_BT):
        shapes = {field.name: np.zeros((2, 5)) for field in dataclasses.fields(Batch)}
        rows = {"chunk_BT": np.array(chunk_BT), "segment_BT": np.array(segment_BT)}
        return Batch(**shapes | rows)

    # Three chunks of two trajectories; a row of two; a trajectory without a policy token (3).
    first = batch([[0, 0, -1, 1, 2], [0, -1, 1, -1, -1]], [[1, 1, 1, 1, 2], [1, 1, 2, 3, 3]])
    nothing = batch([[-1] * 5, [-1] * 5], [[1] * 5, [0] * 5])
    for aggregation, expected in (
        ("tokens", 6),
        ("chunks", 5),
        ("chunk_means", 5),
        ("trajectories", 4),
    ):
        assert count_loss_denominator([first, nothing], aggregation) == expected, aggregation
        assert count_loss_denominator([first, first], aggregation) == 2 * expected, aggregation
        assert count_loss_denominator([nothing], aggregation) == 1, aggregation
    assert count_loss_denominator([first], "constant", 7) == 28
