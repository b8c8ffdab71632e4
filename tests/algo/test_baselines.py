import functools

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ale_jax.algo.baselines import (
    STD_FLOOR,
    against_history,
    against_state,
    along_tree,
    baseline,
    divisor,
    key_mean,
    scale_token_advantages,
    standardise,
)
from ale_jax.config.algo import MEANS, STDS, AdvantageHypers
from tests.rows import each_row

# Two groups of one family and one of another; the third of group 0 is lost.
X = jnp.array([3.0, 1.0, 99.0, 5.0, 7.0, 0.0])
VALID = jnp.array([True, True, False, True, True, True])
GROUP = jnp.array([0, 0, 0, 1, 1, 2])
KEYS = {"group": GROUP, "tag": jnp.array([0, 0, 0, 0, 0, 1]), "batch": jnp.zeros(6, jnp.int32)}


def test_a_mean_leaves_out_what_the_system_lost():
    outcome_U = jnp.array([1.0, 0.0, 99.0, 1.0, 5.0])
    valid_U = jnp.array([True, True, False, True, False])
    mean_U = key_mean(outcome_U, jnp.array([0, 0, 0, 1, 2]), valid_U, 3)
    np.testing.assert_array_equal(mean_U, [0.5, 0.5, 0.5, 1.0, 0.0])


@each_row(
    "mean, expected",
    [
        ("none", [0, 0, 0, 0, 0]),
        ("group", [2, 2, 6, 6, 0]),
        ("leave_one_out", [1, 3, 7, 5, 0]),
        ("tag", [4, 4, 4, 4, 0]),
        ("batch", [3.2, 3.2, 3.2, 3.2, 3.2]),
    ],
)
def test_baselines_by_hand(mean, expected):
    baseline_U = baseline(X, KEYS, VALID, 3, mean)
    np.testing.assert_allclose(np.delete(baseline_U, 2), expected, rtol=1e-6)


@each_row(
    "std, expected",
    [
        ("none", [1, 1, 1, 1, 1]),
        ("group", [1, 1, 1, 1, np.inf]),  # 3 and 1 lie 1 from 2; one alone has no spread
        ("tag", [5**0.5] * 4 + [np.inf]),  # of 3 1 5 7: (1 + 9 + 1 + 9) / 4
        ("batch", [6.56**0.5] * 5),  # (0.04 + 4.84 + 3.24 + 14.44 + 10.24) / 5
    ],
)
def test_population_deviations_by_hand(std, expected):
    divisor_U = np.delete(divisor(X, KEYS, VALID, 3, std), 2)
    np.testing.assert_allclose(divisor_U, np.array(expected) + STD_FLOOR * (std != "none"), 1e-6)


def test_mean_and_std_are_chosen_apart():
    # Mean of the group, std of the batch (LitePPO).
    found_U = standardise(X, KEYS, VALID, 3, "group", "batch")
    expected = np.array([1, -1, 0, -1, 1, 0]) / 6.56**0.5
    np.testing.assert_allclose(found_U, expected, rtol=1e-5)


@settings(deadline=None, max_examples=30)
@given(st.floats(-2, 2, width=32), st.integers(1, 9), st.sampled_from(MEANS[1:]))
def test_a_group_of_equals_comes_out_at_exactly_zero(x, size, mean):
    """Exactly: 0.1 summed three times and divided by 3 is not 0.1 in float32."""
    valid_U = np.arange(9) < size  # the rest is lost, so that all groups have one shape
    x_U = np.where(valid_U, x, 1.0).astype(np.float32)
    keys = dict.fromkeys(("group", "tag", "batch"), np.zeros(9, np.int32))
    for std in STDS:
        found_U = standardise(x_U, keys, valid_U, 1, mean, std)
        np.testing.assert_array_equal(np.asarray(found_U)[valid_U], np.zeros(size))


def test_what_is_equal_teaches_nothing_by_its_deviation_either():
    found_U = standardise(
        jnp.full(3, 2.0),
        KEYS | {"group": jnp.zeros(3, jnp.int32)},
        jnp.ones(3, bool),
        1,
        "none",
        "group",
    )
    np.testing.assert_array_equal(found_U, np.zeros(3))


def temporary_bytes(function, *arguments):
    compiled = jax.jit(function).lower(*arguments).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@each_row("mean, std", [("group", "group"), ("leave_one_out", "none"), ("batch", "batch")])
def test_the_scale_of_tokens_needs_memory_for_tokens_and_not_for_tokens_times_groups(mean, std):
    hp = AdvantageHypers("token_return", mean=mean, std=std)
    scale = functools.partial(scale_token_advantages, hp=hp)
    shape, tokens = (2, 4, 2048), 2 * 4 * 2048
    numbers = jnp.zeros(shape), jnp.ones(shape, bool), jnp.zeros(shape, int)
    few, many = (temporary_bytes(scale, *numbers, jnp.zeros(G, int)) for G in (4, 256))
    assert few <= many < few + tokens


def test_states_need_memory_for_chunks_and_not_for_chunks_times_trajectories():
    N, C = 64, 16
    return_NC, real_NC = jnp.zeros((N, C)), jnp.ones((N, C), bool)
    anchor_NC = jnp.zeros((N, C), int)
    history = functools.partial(against_history, std="group")
    state = functools.partial(against_state, std="group")
    for function, arguments in (
        (history, (return_NC, anchor_NC, real_NC)),
        (state, (return_NC, anchor_NC, real_NC)),
        (along_tree, (return_NC[:, 0], return_NC[:, 0], anchor_NC, real_NC)),
    ):
        assert temporary_bytes(function, *arguments) < 20 * 4 * N * C, function
