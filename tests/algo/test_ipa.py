import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

from ale_jax.algo import ipa
from ale_jax.algo.grpo import GrpoHypers, grpo_loss

HP = ipa.IpaHypers()
LN2 = math.log(2.0)

# Two trajectories in one row, "p" a prompt token, "o" an observation:
#   success  p [c0 c0] o [c1]     c1 is dropped: pi_old/mu = e^0.3 > 1.2
#   failure  p [c2 c2] o [c3]     c2: ratio e^0.7, truncated to 1; c3: ratio 1/2
EXAMPLE = {
    "chunk_BT": jnp.array([[-1, 0, 0, -1, 1, -1, 2, 2, -1, 3]]),
    "logp_BT": jnp.array([[0.0, -1.0, -2.0, 0.0, -0.7, 0.0, -1.0, -1.0, 0.0, -3.0]]),
    "logp_old_BT": jnp.array([[0.0, -1.5, -2.5, 0.0, -1.0, 0.0, -1.5, -1.9, 0.0, -3.0 + LN2]]),
    "logp_mu_BT": jnp.array([[0.0, -1.5, -2.5, 0.0, -1.3, 0.0, -1.5, -1.9, 0.0, -3.0 + LN2]]),
    "advantage_BC": jnp.array([[0.5, 0.6, -0.5, -0.4]]),
    "positive_BC": jnp.array([[True, True, False, False]]),
}


def loss_and_grad(arrays, normaliser=6.0, hp=HP, loss=ipa.ipa_loss):
    def scalar(logp_BT):
        return loss(**{**arrays, "logp_BT": logp_BT}, normaliser=normaliser, hp=hp)

    (value, metrics), grad_BT = jax.value_and_grad(scalar, has_aux=True)(arrays["logp_BT"])
    return value, metrics, grad_BT


def random_arrays(seed, rows=3, tokens=12, chunks=4, gap=0.3):
    rng = np.random.default_rng(seed)
    chunk_BT = np.sort(rng.integers(-1, chunks, (rows, tokens)), axis=1)
    logp_BT = -rng.exponential(1.0, (rows, tokens))
    logp_old_BT = logp_BT + gap * rng.normal(size=(rows, tokens))
    logp_mu_BT = logp_old_BT + gap * rng.normal(size=(rows, tokens))
    return {
        "chunk_BT": jnp.asarray(chunk_BT, jnp.int32),
        "logp_BT": jnp.asarray(logp_BT, jnp.float32),
        "logp_old_BT": jnp.asarray(logp_old_BT, jnp.float32),
        "logp_mu_BT": jnp.asarray(logp_mu_BT, jnp.float32),
        "advantage_BC": jnp.asarray(rng.normal(size=(rows, chunks)), jnp.float32),
        "positive_BC": jnp.asarray(rng.random((rows, chunks)) < 0.5),
    }


def test_eq8_is_a_geometric_mean():
    ratio_BC = ipa.chunk_ratio(
        jnp.array([[0.0, LN2, 3 * LN2]]), jnp.zeros((1, 3)), jnp.array([[-1, 0, 0]]), 2
    )
    np.testing.assert_allclose(ratio_BC, [[4.0, 1.0]], rtol=1e-6)  # sqrt(2 * 8); empty chunk


def test_mask_is_one_sided_and_for_whole_chunks():
    old_BT = jnp.log(jnp.array([[1.2, 1.0, 1.19, 1.21, 1.5, 1.0, 1e-6]]))
    chunk_BT = jnp.array([[0, 0, 1, 2, 3, 3, 4]])
    mask_BC = ipa.chunk_mask(old_BT, jnp.zeros((1, 7)), chunk_BT, 5, threshold=1.2)
    # chunk 3: sqrt(1.5) > 1.2 although one of its two tokens agrees; chunk 4: no lower bound
    np.testing.assert_array_equal(mask_BC, [[True, True, False, False, True]])


@pytest.mark.parametrize("compiled", [False, True])
def test_eq9_by_hand(compiled):
    with jax.disable_jit(not compiled):
        value, metrics, grad_BT = loss_and_grad(EXAMPLE)
    #   c0: 1 * 0.5 * (-1 - 2) = -1.5    c2: 1 * -0.5 * (-1 - 1) = 1.0
    #   c1: dropped                      c3: 1/2 * -0.4 * -3 = 0.6       sum 0.1
    np.testing.assert_allclose(value, -0.1 / 6, rtol=1e-5)
    weight = np.array([[0, 0.5, 0.5, 0, 0, 0, -0.5, -0.5, 0, -0.2]])
    np.testing.assert_allclose(grad_BT, -weight / 6, rtol=1e-5)
    assert {k: float(metrics[k]) for k in ("tokens", "chunks")} == {"tokens": 6, "chunks": 4}
    assert metrics["dropped_chunks"] == 1 and metrics["truncated_chunks"] == 1
    ratios = math.exp(0.5) + math.exp(0.3) + math.exp(0.7) + 0.5
    np.testing.assert_allclose(metrics["ratio"], ratios, rtol=1e-6)
    np.testing.assert_allclose(metrics["engine_gap"], 0.3, rtol=1e-5)


def test_eq9_jitted_equals_eager_equals_vmapped():
    arrays = [random_arrays(seed) for seed in (1, 2)]
    eager = [ipa.ipa_loss(**a, normaliser=9.0, hp=HP) for a in arrays]
    jitted = [
        jax.jit(ipa.ipa_loss, static_argnames="hp")(**a, normaliser=9.0, hp=HP) for a in arrays
    ]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *arrays)
    mapped, _ = jax.vmap(lambda a: ipa.ipa_loss(**a, normaliser=9.0, hp=HP))(stacked)
    for m in range(2):
        np.testing.assert_allclose(eager[m][0], jitted[m][0], rtol=1e-5)
        np.testing.assert_allclose(eager[m][0], mapped[m], rtol=1e-5)


def test_ratio_on_positives_is_a_choice():
    late = {
        **EXAMPLE,
        "logp_old_BT": EXAMPLE["logp_old_BT"].at[0, 1:3].set(jnp.array([-1.0, -1.0])),
    }
    late["logp_mu_BT"] = late["logp_old_BT"]  # c0: log-ratio (0 - 1) / 2
    _, _, without = loss_and_grad(late)
    _, _, with_ratio = loss_and_grad(late, hp=ipa.IpaHypers(ratio_on_positives=True))
    np.testing.assert_allclose(without[0, 1], -0.5 / 6, rtol=1e-5)
    np.testing.assert_allclose(with_ratio[0, 1], -0.5 * math.exp(-0.5) / 6, rtol=1e-5)


def test_negative_weight_is_of_failures_alone():
    _, _, grad_BT = loss_and_grad(EXAMPLE)
    _, _, weighted_BT = loss_and_grad(EXAMPLE, hp=ipa.IpaHypers(negative_weight=0.1))
    failure_BT = EXAMPLE["chunk_BT"] >= 2
    assert (grad_BT != 0).sum() == 5
    np.testing.assert_allclose(weighted_BT, jnp.where(failure_BT, 0.1, 1.0) * grad_BT, rtol=1e-6)


def test_gradient_of_positives_against_differences():
    arrays = {**random_arrays(3), "positive_BC": jnp.ones((3, 4), bool)}

    def scalar(logp_BT):
        return ipa.ipa_loss(**{**arrays, "logp_BT": logp_BT}, normaliser=5.0, hp=HP)[0]

    check_grads(scalar, (arrays["logp_BT"],), order=1, modes=["rev"], eps=1e-2, rtol=1e-2)


def test_the_weight_itself_is_not_optimised():
    """A failure's d loss / d logp is -w A / Z with w held still."""
    arrays = {**random_arrays(4), "positive_BC": jnp.zeros((3, 4), bool)}
    hp = ipa.IpaHypers(mask_threshold=1e6)
    _, _, grad_BT = loss_and_grad(arrays, normaliser=1.0, hp=hp)
    chunk_BT, expected = np.asarray(arrays["chunk_BT"]), np.zeros((3, 12))
    for b, t in zip(*np.nonzero(chunk_BT >= 0)):
        inside = chunk_BT[b] == chunk_BT[b, t]
        log_ratio = np.mean(arrays["logp_BT"][b][inside] - arrays["logp_old_BT"][b][inside])
        expected[b, t] = -min(math.exp(log_ratio), 1) * arrays["advantage_BC"][b, chunk_BT[b, t]]
    np.testing.assert_allclose(grad_BT, expected, rtol=1e-4, atol=1e-6)


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 2**16), st.integers(1, 2))
def test_microbatches_add_up_to_the_whole(seed, cut):
    arrays = random_arrays(seed)
    whole, metrics, grad_BT = loss_and_grad(arrays, normaliser=20.0)
    parts = [
        loss_and_grad(jax.tree.map(lambda x, s=s: x[s], arrays), normaliser=20.0)
        for s in (slice(None, cut), slice(cut, None))
    ]
    np.testing.assert_allclose(sum(p[0] for p in parts), whole, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(jnp.concatenate([p[2] for p in parts]), grad_BT)
    for name in metrics:
        np.testing.assert_allclose(sum(p[1][name] for p in parts), metrics[name], rtol=1e-4)


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 2**16))
def test_tokens_outside_chunks_have_no_say(seed):
    arrays = random_arrays(seed)
    outside_BT = arrays["chunk_BT"] < 0
    dirty = {
        k: jnp.where(outside_BT, jnp.nan, v) if k.startswith("logp") else v
        for k, v in arrays.items()
    }
    clean_loss, clean_metrics, clean_grad = loss_and_grad(arrays)
    loss, metrics, grad = loss_and_grad(dirty)
    np.testing.assert_array_equal(loss, clean_loss)
    np.testing.assert_array_equal(grad, clean_grad)
    assert metrics == clean_metrics
    assert not np.asarray(grad)[np.asarray(outside_BT)].any()


def test_rows_without_chunks_are_harmless():
    arrays = {**random_arrays(5), "chunk_BT": jnp.full((3, 12), -1)}
    loss, metrics, grad_BT = loss_and_grad(arrays)
    assert loss == 0.0 and not grad_BT.any()
    assert set(metrics) and all(v == 0.0 for v in metrics.values())


def test_extreme_gaps_stay_finite():
    arrays = random_arrays(6)
    for far in (-1e4, 1e4):
        shifted = {**arrays, "logp_old_BT": arrays["logp_BT"] + far}
        shifted["logp_mu_BT"] = shifted["logp_old_BT"]
        loss, metrics, grad_BT = loss_and_grad(shifted)
        assert all(np.isfinite(x).all() for x in (loss, grad_BT, *metrics.values()))


def test_on_policy_ipa_has_the_gradient_of_grpo():
    """With pi = pi_old = mu all ratios are 1 and nothing is clipped or dropped."""
    arrays = random_arrays(7, gap=0.0)
    _, _, ours = loss_and_grad(arrays)
    _, _, theirs = loss_and_grad(arrays, hp=GrpoHypers(), loss=grpo_loss)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert np.abs(ours).max() > 0.01


@pytest.mark.parametrize(
    ("field", "value", "remedy"),
    [
        ("gamma", 1.5, "no discount"),
        ("gamma", math.nan, "no discount"),
        ("mask_threshold", 0.8, "ratio 1"),
        ("failure_reward", 1.0, "not worth"),
        ("baseline", "median", "group_mean, none"),
        ("normaliser", "rows", "tokens, chunks, trajectories"),
        ("old_logp", "vllm", "sampler, trainer"),
    ],
)
def test_a_bad_hyperparameter_is_named_with_its_remedy(field, value, remedy):
    with pytest.raises(ValueError, match=f"{field} .*{value}.*{remedy}"):
        ipa.IpaHypers(**{field: value})
