"""What is said of a policy's attention is what all of it, held at once, would say."""

import dataclasses
import math

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from ale_jax.config.architecture import Attention
from ale_jax.config.hardware import MeshShape
from ale_jax.config.model import LoraShape
from ale_jax.model.attention_credit import (
    BLOCK,
    attention_statistics,
    head_statistics,
    middle_layers,
)
from ale_jax.model.layers import block_input
from ale_jax.model.lora import merged, new_adapters
from ale_jax.model.params import init_params
from ale_jax.model.policy import heads_of, hidden_states
from ale_jax.model.sharding import param_shardings
from tests.model.shapes import DENSE, LATENT, MOE, changed

DEEP = changed(DENSE, num_layers=6)
HEADS = DEEP.layers[0].mixer.num_heads
THREE = changed(DENSE, num_layers=3)  # of which the second is looked at
WINDOW, HORIZON = 10, (10, 50)
PLAIN = Attention(4, 2, 16, scale=0.25, rope=None)


def _rows(tokens):
    """Two trajectories and padding; one whole row. A third of the tokens is observed."""
    draw = np.random.default_rng(0)
    segment_BT = np.ones((2, tokens), np.int32)
    segment_BT[0, tokens // 3 :] = 2
    segment_BT[0, -7:] = 0
    position_BT = np.tile(np.arange(tokens), (2, 1))
    position_BT[0, tokens // 3 :] -= tokens // 3
    action_mask_BT = (draw.random((2, tokens)) < 0.67) & (segment_BT > 0)
    return draw.integers(0, 96, (2, tokens)), position_BT, segment_BT, action_mask_BT


def _plain(q_BTNH, k_BTGH, segment_BT, action_mask_BT, window=WINDOW, horizon=HORIZON, kind=None):
    """In float64, with the whole attention."""
    q_BTNH, k_BTGH = np.asarray(q_BTNH, np.float64), np.asarray(k_BTGH, np.float64)
    N, H = q_BTNH.shape[2:]
    k_BTNH = np.repeat(k_BTGH, N // k_BTGH.shape[2], axis=2)
    distance_TS = np.subtract.outer(np.arange(q_BTNH.shape[1]), np.arange(q_BTNH.shape[1]))
    seen_BTS = (segment_BT[:, :, None] == segment_BT[:, None, :]) & (distance_TS >= 0)
    score_BNTS = np.einsum("btnh,bsnh->bnts", q_BTNH, k_BTNH) * (kind.scale if kind else H**-0.5)
    if kind and kind.cap:
        score_BNTS = kind.cap * np.tanh(score_BNTS / kind.cap)
    if kind and kind.window:
        seen_BTS &= distance_TS < kind.window
    A = np.where(seen_BTS[:, None], np.exp(score_BNTS), 0.0)
    A /= A.sum(axis=-1, keepdims=True)
    low, high = horizon
    back_BTS = seen_BTS & (low <= distance_TS) & (distance_TS <= high) & action_mask_BT[:, :, None]
    times_BS = np.maximum(back_BTS.sum(axis=1), 1)
    return (
        (A * distance_TS).sum(axis=-1),
        (A * np.minimum(distance_TS, window)).sum(axis=-1),
        (A * back_BTS[:, None]).sum(axis=2) / times_BS[:, None],
    )


def _assert_alike(found, expected):
    for one, other, atol in zip(found, expected, (2e-3, 1e-4, 1e-5), strict=True):
        assert np.ptp(other) > 0.01
        np.testing.assert_allclose(one, other, atol=atol)


# Of the module, compiled: operation by operation it would take long.
_head_statistics = jax.jit(head_statistics, static_argnums=(4, 5, 6))
_attention_statistics = jax.jit(attention_statistics, static_argnums=(5, 6, 7, 8))
_hidden_states = jax.jit(hidden_states, static_argnums=4)


@pytest.mark.parametrize(
    ("tokens", "window", "horizon", "kind"),
    [
        (BLOCK, WINDOW, HORIZON, PLAIN),
        (300, WINDOW, HORIZON, PLAIN),
        (300, 40, (1, 5), PLAIN),
        (300, BLOCK, (0, BLOCK), PLAIN),
        (300, WINDOW, HORIZON, dataclasses.replace(PLAIN, scale=0.5, cap=2.0, window=30)),
    ],
    ids=["one block", "between two and three", "far", "a whole block back", "capped"],
)
def test_blocks_say_what_the_whole_attention_says(tokens, window, horizon, kind):
    _, _, segment_BT, action_mask_BT = _rows(tokens)
    keys = jax.random.split(jax.random.key(0), 2)
    q_BTNH = 2 * jax.random.normal(keys[0], (2, tokens, 4, 16))
    k_BTGH = 2 * jax.random.normal(keys[1], (2, tokens, 2, 16))
    args = q_BTNH, k_BTGH, segment_BT, action_mask_BT, window, horizon, kind
    _assert_alike(_head_statistics(*args), _plain(*args))


def test_even_attention_by_hand():
    """All scores equal: of n tokens seen, each gets 1/n."""
    action_mask_BT = np.array([[False, True, True, True]])
    ones = np.ones((1, 4), np.int32)
    zeros = jnp.zeros((1, 4, 1, 2))
    found = _head_statistics(zeros, zeros, ones, action_mask_BT, 2, (1, 2), PLAIN)
    # Distances 0; 0,1; 0,1,2; 0,1,2,3.
    np.testing.assert_allclose(found.distance_BXT[0, 0], [0, 1 / 2, 3 / 3, 6 / 4], atol=1e-6)
    np.testing.assert_allclose(found.waad_BXT[0, 0], [0, 1 / 2, 3 / 3, 5 / 4], atol=1e-6)
    # Token 0 is seen by 1 and 2, which give it 1/2 and 1/3; token 1 by 2 and 3; token 2 by 3.
    fai = [(1 / 2 + 1 / 3) / 2, (1 / 3 + 1 / 4) / 2, 1 / 4, 0]
    np.testing.assert_allclose(found.fai_BXT[0, 0], fai, atol=1e-6)


def test_what_was_observed_asks_nothing():
    action_mask_BT = np.array([[True, False, True]])
    ones = np.ones((1, 3), np.int32)
    zeros = jnp.zeros((1, 3, 1, 2))
    found = _head_statistics(zeros, zeros, ones, action_mask_BT, 2, (1, 2), PLAIN)
    # Token 1 attends to token 0, and does not count; token 2 does.
    np.testing.assert_allclose(found.fai_BXT[0, 0], [1 / 3, 1 / 3, 0], atol=1e-6)


def test_the_middle_third():
    assert [middle_layers(n, 5) for n in (1, 2, 3, 4, 6)] == [(0,), (0,), (1,), (1,), (2, 3)]
    # Layers 12 to 23 of 36: 12, 14.75, 17.5, 20.25, 23.
    assert middle_layers(36, 5) == (12, 15, 18, 20, 23)
    assert middle_layers(36, 1) == (12,)


def _policy_queries(params, rows, shape, layer, replay_BTLK=None):
    """Queries and keys of a layer, of a policy that ends in front of it."""
    tokens_BT, position_BT, segment_BT, _ = rows
    cut = dataclasses.replace(shape, layers=shape.layers[:layer])
    ones = jnp.ones_like(params["final_norm_D"])
    front = params | {"layers": params["layers"][:layer], "final_norm_D": ones}
    replay_BTLK = None if replay_BTLK is None else replay_BTLK[:, :, :layer]
    args = front, tokens_BT, position_BT, segment_BT, cut
    normed_BTD, _ = _hidden_states(*args, replay_BTLK=replay_BTLK)
    # What hidden_states returns is normed, and the layer norms it again: only eps tells.
    kind, weights = shape.layers[layer], params["layers"][layer]
    h_BTD = block_input(weights, normed_BTD, kind, "attn")
    q_BTNH, k_BTGH, _, attention = heads_of(weights, h_BTD, position_BT, kind)
    return q_BTNH * attention.scale * attention.head_width**0.5, k_BTGH


@pytest.mark.heavy
@pytest.mark.parametrize("shape", [MOE, DEEP, LATENT], ids=["experts", "six layers", "latents"])
def test_the_policys_own_layers_are_looked_at(shape):
    params, rows = init_params(jax.random.key(0), shape), _rows(200)
    layers = middle_layers(shape.num_layers, 5)
    found = _attention_statistics(params, *rows, shape, layers, WINDOW, HORIZON)
    expected = [_plain(*_policy_queries(params, rows, shape, layer), *rows[2:]) for layer in layers]
    _assert_alike(found, [np.concatenate(each, axis=1) for each in zip(*expected)])


def test_replayed_experts_are_taken():
    params, rows = init_params(jax.random.key(0), MOE), _rows(64)
    replay_BTLK = np.random.default_rng(1).integers(0, MOE.num_experts, (2, 64, 2, 2))
    args = params, *rows, MOE, (1,), WINDOW, HORIZON
    found = _attention_statistics(*args, replay_BTLK=replay_BTLK)
    _assert_alike(found, _plain(*_policy_queries(params, rows, MOE, 1, replay_BTLK), *rows[2:]))
    assert np.abs(found.waad_BXT - _attention_statistics(*args).waad_BXT).max() > 0.1


def test_adapters_are_seen():
    params, rows, lora = (
        init_params(jax.random.key(0), DENSE),
        _rows(64),
        LoraShape(rank=2, alpha=4.0, targets=("q",)),
    )
    adapted = params | new_adapters(jax.random.key(1), DENSE, lora)
    adapted["adapters"] = jax.tree.map(lambda x: x + 0.3, adapted["adapters"])
    found = _attention_statistics(adapted, *rows, DENSE, (1,), WINDOW, HORIZON)
    expected = _attention_statistics(merged(adapted), *rows, DENSE, (1,), WINDOW, HORIZON)
    before = _attention_statistics(params, *rows, DENSE, (1,), WINDOW, HORIZON)
    np.testing.assert_allclose(found.waad_BXT, expected.waad_BXT, atol=1e-4)
    assert np.abs(found.waad_BXT - before.waad_BXT).max() > 0.1


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        (MOE, {"data": 2, "expert": 2, "tensor": 2}),
        (THREE, {"fsdp": 2, "tensor": 2}),
        (THREE, {"data": 2, "context": 2}),
    ],
    ids=lambda x: str(x) if isinstance(x, dict) else None,
)
def test_a_mesh_says_what_one_device_says(shape, axes):
    sizes = dataclasses.asdict(MeshShape(data=1)) | axes
    devices = jax.devices()[: math.prod(sizes.values())]
    kinds = (AxisType.Auto,) * len(sizes)
    mesh = jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=kinds, devices=devices)
    params, rows = init_params(jax.random.key(0), shape), _rows(256)
    layers = middle_layers(shape.num_layers, 5)

    @jax.jit
    def look(params, rows):
        return attention_statistics(params, *rows, shape, layers, WINDOW, HORIZON)

    expected = look(params, rows)
    with jax.set_mesh(mesh):
        found = look(jax.device_put(params, param_shardings(shape, mesh)), rows)
    _assert_alike(found, expected)


def _arrays(jaxpr):
    """Shapes of all that a program computes, those of the programs in it too."""
    for equation in jaxpr.eqns:
        yield from (tuple(var.aval.shape) for var in equation.outvars)
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from _arrays(inner)


@pytest.mark.heavy
def test_no_more_attention_is_held_than_one_block_of_one_layer():
    T, layers = 4096, (2, 3)
    rows = [jax.ShapeDtypeStruct((2, T), jnp.int32)] * 3 + [jax.ShapeDtypeStruct((2, T), bool)]
    params = jax.eval_shape(lambda: init_params(jax.random.key(0), DEEP))

    def look(params, *rows):
        return attention_statistics(params, *rows, DEEP, layers, WINDOW, HORIZON)

    keys = T + HORIZON[1]
    block = 2 * HEADS * BLOCK * keys
    sizes = [math.prod(shape) for shape in _arrays(jax.make_jaxpr(look)(params, *rows).jaxpr)]
    assert max(sizes) == block
    compiled = jax.jit(look).lower(params, *rows).compile()
    whole = len(layers) * 2 * HEADS * T * T * 4  # bytes
    assert compiled.memory_analysis().temp_size_in_bytes < whole / 8
