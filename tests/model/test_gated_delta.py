"""Chunks of the gated delta rule are the plain recurrence, in packed rows and beside padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.config.architecture import GatedDelta
from ale_jax.config.hardware import MeshShape
from ale_jax.model.delta_layer import DeltaState, extended_delta, packed_delta
from ale_jax.model.gated_delta import DeltaTokens, delta_rule
from ale_jax.model.params import _delta_table, init_table
from ale_jax.model.sharding import make_mesh

pytestmark = pytest.mark.heavy

B, T, G, N, H, h = 2, 150, 2, 4, 8, 6
KIND, EPS = GatedDelta(G, N, H, h, conv_width=4), 1e-6
D = 16
CLOSE = 1e-5
# Of the segments in each row, one of which ends within a chunk, and one at a chunk's end.
LENGTHS = ((20, 44, 70), (150,))


def _tokens(key=0, tokens=T):
    draw = np.random.default_rng(key)
    q, k = (draw.normal(size=(B, tokens, G, H)) for _ in range(2))
    k = k / np.linalg.norm(k, axis=-1, keepdims=True)
    v = draw.normal(size=(B, tokens, N, h))
    decay, beta = -draw.exponential(size=(B, tokens, N)), draw.uniform(size=(B, tokens, N))
    return DeltaTokens(*(jnp.asarray(x, jnp.float32) for x in (q, k, v, decay, beta)))


def _recurrence(tokens, run_BT, state_BNHh):
    """Token by token, as the equations have it, in float64."""
    q, k, v, decay, beta = (np.asarray(x, np.float64) for x in tokens)
    q, k = (np.repeat(x, N // G, axis=2) for x in (q, k))
    out = np.zeros(v.shape)
    last = np.array(state_BNHh, np.float64)
    for row in range(len(v)):
        for head in range(N):
            state, before = last[row, head].copy(), 0
            for t in range(v.shape[1]):
                state = state * (run_BT[row, t] == before) * np.exp(decay[row, t, head])
                wrong = v[row, t, head] - k[row, t, head] @ state
                state = state + np.outer(k[row, t, head], beta[row, t, head] * wrong)
                out[row, t, head], before = q[row, t, head] @ state, run_BT[row, t]
            last[row, head] = state
    return out, last


def _segments(lengths=LENGTHS):
    segment_BT = np.zeros((B, T), np.int32)
    for row, each in zip(segment_BT, lengths, strict=True):
        row[: sum(each)] = np.repeat(np.arange(1, 1 + len(each)), each)
    return segment_BT


@pytest.mark.parametrize("runs", ["one", "several"])
def test_chunks_are_the_recurrence(runs):
    run_BT = np.zeros((B, T), np.int32) if runs == "one" else _segments()
    state = jax.random.normal(jax.random.key(1), (B, N, H, h))
    expected, last = _recurrence(_tokens(), run_BT, state)
    out, after = jax.jit(delta_rule)(_tokens(), run_BT, state)
    np.testing.assert_allclose(out, expected, atol=CLOSE)
    np.testing.assert_allclose(after, last, atol=CLOSE)


def test_equal_keys_without_decay_are_still_exact():
    """The system that a chunk solves is then as far from the identity as it can be."""
    tokens = _tokens()
    key = jnp.broadcast_to(tokens.k_BTGH[:1, :1, :1], tokens.k_BTGH.shape)
    tokens = tokens._replace(
        k_BTGH=key, decay_BTN=0 * tokens.decay_BTN, beta_BTN=0.99 + 0 * tokens.beta_BTN
    )
    run_BT, state = np.zeros((B, T), np.int32), jnp.zeros((B, N, H, h))
    expected, _ = _recurrence(tokens, run_BT, state)
    np.testing.assert_allclose(delta_rule(tokens, run_BT, state)[0], expected, atol=CLOSE)


def test_one_token_after_another_is_a_chunk():
    tokens, state = _tokens(tokens=5), jax.random.normal(jax.random.key(1), (B, N, H, h))
    run_BT = np.zeros((B, 5), np.int32)
    expected, last = delta_rule(tokens, run_BT, state)
    outs = []
    for t in range(5):
        one = jax.tree.map(lambda x, t=t: x[:, t : t + 1], tokens)
        out, state = delta_rule(one, run_BT[:, t : t + 1], state)
        outs.append(out)
    np.testing.assert_allclose(jnp.concatenate(outs, axis=1), expected, atol=CLOSE)
    np.testing.assert_allclose(state, last, atol=CLOSE)


def _scan(tokens, run_BT, state_BNHh):
    """The recurrence, whose gradient JAX derives."""

    def step(carry, x):
        state, before = carry
        (q, k, v, decay, beta), run = x
        kept = jnp.where(run == before, 1.0, 0.0)[:, None] * jnp.exp(decay)
        state = state * kept[..., None, None]
        u = beta[..., None] * (v - jnp.einsum("bnk,bnkv->bnv", k, state))
        state = state + k[..., None] * u[..., None, :]
        return (state, run), jnp.einsum("bnk,bnkv->bnv", q, state)

    q, k, *others = tokens
    q, k = (jnp.repeat(x, N // G, axis=2) for x in (q, k))
    rows = jax.tree.map(lambda x: x.swapaxes(0, 1), ((q, k, *others), run_BT))
    (last, _), out = jax.lax.scan(step, (state_BNHh, jnp.zeros(B, jnp.int32)), rows)
    return out.swapaxes(0, 1), last


def test_gradients_are_those_of_the_recurrence():
    run_BT = jnp.asarray(_segments(((20, 44, 70), (60, 90)))).at[1, :60].set(0)
    state = jax.random.normal(jax.random.key(1), (B, N, H, h))

    def gradient(rule):
        def total(tokens, state):
            out, last = rule(tokens, run_BT, state)
            return jnp.sin(3 * out).sum() + (last**2).sum()

        return jax.jit(jax.grad(total, argnums=(0, 1)))(_tokens(), state)

    found, expected = gradient(delta_rule), gradient(_scan)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert jnp.isfinite(theirs).all() and jnp.abs(theirs).max() > 0.1
        np.testing.assert_allclose(ours, theirs, atol=CLOSE * float(jnp.abs(theirs).max()))


def _layer():
    table = _delta_table(D, KIND)
    layer = init_table(jax.random.key(0), table)
    return layer | {"delta_decay_N": layer["delta_decay_N"] - 3}  # so that much is remembered


def _hidden(tokens=T):
    return jax.random.normal(jax.random.key(2), (B, tokens, D))


def test_a_segment_is_what_it_is_alone():
    segment_BT = _segments()
    packed = jax.jit(packed_delta, static_argnums=3)(_layer(), _hidden(), segment_BT, KIND, EPS)
    for start, length in ((0, 20), (20, 44), (64, 70)):
        one = _hidden()[:1, start : start + length]
        alone = packed_delta(_layer(), one, jnp.ones((1, length), jnp.int32), KIND, EPS)
        assert jnp.abs(alone).max() > 0.1
        np.testing.assert_allclose(packed[:1, start : start + length], alone, atol=CLOSE)


def test_what_is_appended_continues_the_row():
    """Chunks with padding, and then one token after another."""
    layer, h_BTD = _layer(), _hidden(80)
    expected = packed_delta(layer, h_BTD, jnp.ones((B, 80), jnp.int32), KIND, EPS)
    state = DeltaState.zeros(B, KIND, jnp.float32)
    outs, start = [], 0
    for count, size in ((2, 8), (0, 8), (70, 72), (1, 1), (3, 4), (1, 1), (1, 1), (2, 2)):
        padded = jnp.full((B, size, D), 7.0).at[:, :count].set(h_BTD[:, start : start + count])
        is_real = jnp.tile(jnp.arange(size) < count, (B, 1))
        out, state = extended_delta(layer, padded, is_real, state, KIND, EPS)
        outs.append(out[:, :count])
        start += count
    np.testing.assert_allclose(jnp.concatenate(outs, axis=1), expected, atol=CLOSE)


def test_devices_that_share_rows_and_heads_compute_the_same():
    mesh = make_mesh(MeshShape(fsdp=2, tensor=2, data=-1))
    run_BT, state = _segments(), jnp.zeros((B, N, H, h))
    expected, _ = delta_rule(_tokens(), run_BT, state)
    with jax.set_mesh(mesh):
        out, _ = jax.jit(delta_rule)(_tokens(), run_BT, state)
        assert not out.sharding.is_fully_replicated
    np.testing.assert_allclose(out, expected, atol=CLOSE)
