"""The arithmetic of a token, by hand, and what devices are known to do."""

import dataclasses

import pytest

from ale_jax.config.model import LoraShape
from ale_jax.model.arithmetic import forward_flops, gradient_flops, peak_flops
from ale_jax.model.params import count_params
from tests.model.shapes import DENSE, LATENT, MIXED, MOE, RECURRENT, with_mixer
from tests.rows import each_row

ATTENTION = 2 * 2 * 2 * 64 * 4  # two layers, scores and values, 64 numbers, 4 keys
PROJECTIONS = 2 * 2 * (2048 + 2 * 1024 + 2048)
HEAD = 2 * 32 * 96


def test_the_forward_pass():
    assert forward_flops(MIXED, keys=4.0) == {  # one dense layer, one with experts
        "projections": PROJECTIONS,
        "attention": ATTENTION,
        "experts": 2 * (2 * 3 * 32 * 24 + 32 * 8),  # two experts of eight, and the router
        "dense": 2 * 3 * 32 * 48,
        "head": HEAD,
    }


def test_the_gradient():
    experts = 2 * 2 * (2 * 3 * 32 * 24 + 32 * 8)
    assert gradient_flops(MOE, 4.0) == 3 * (PROJECTIONS + experts + HEAD + ATTENTION)
    # What is frozen has no gradient; queries, keys and values have none of their own.
    adapters = LoraShape(rank=2, alpha=4.0, targets=("q",))
    lora = gradient_flops(MOE, 4.0, adapters)
    assert lora == 2 * (PROJECTIONS + experts + HEAD) + 3 * ATTENTION


DIRECT = dataclasses.replace(LATENT.layers[0].mixer, q_rank=0)


@each_row(
    "shape, norms",
    [
        (MOE, 2 * 16),
        (MIXED, 2 * 16),
        (DENSE, 2 * 16),
        (LATENT, 20 + 24),
        (with_mixer(MIXED, DIRECT), 24),
    ],
)
def test_it_is_six_for_each_active_weight(shape, norms):
    """But for scales of norms, and an embedding in which a token is only looked up."""
    shape = dataclasses.replace(shape, tie_embeddings=False)
    _, active = count_params(shape)
    norms, embedding = 2 * (2 * 32 + norms) + 32, 96 * 32
    assert gradient_flops(shape, 0.0) == 6 * (active - norms - embedding)


def test_states_are_read_twice_and_written_whatever_came_before():
    for keys in (0.0, 1000.0):
        attends = 2.0 * 2 * 4 * 16 * keys  # the last layer's four heads of width 16
        found = forward_flops(RECURRENT, keys)
        convolved = 2 * 3 * 32  # three tokens, 32 channels
        assert found["attention"] == attends + 3 * 2 * 4 * 16 * 8 + convolved
    # Queries and keys of 2 heads, values, gates and outputs of 4, two numbers of each of these;
    # queries, gates and outputs of 4 heads, keys and values of 2.
    delta, attention = 2 * 2 * 16 + 3 * 4 * 8 + 2 * 4, 3 * 4 * 16 + 2 * 2 * 16
    # Of a convolution: three maps into its channels, and one out of them.
    assert found["projections"] == 2 * 32 * (delta + attention + 4 * 32)


def test_latents_attend_with_keys_and_values_of_two_widths():
    found = forward_flops(LATENT, keys=3.0)["attention"]
    assert found == 2 * 3 * 2 * 4 * ((12 + 8) + 10)  # layers, keys, multiply-add, heads


@each_row(
    "kinds, peak",
    [
        (["NVIDIA H200"], 989.0),
        (["TPU v5 lite"] * 4, 788.0),
        (["TPU v5"], 459.0),
        (["TPU7x"] * 2, 2307.0),  # a chip
        (["cpu"], 0.0),
        (["NVIDIA H200", "NVIDIA H200 MIG 1g.18gb"], 0.0),
        (["NVIDIA"], 0.0),
    ],
)
def test_the_peak_of_devices_is_known_only_if_each_of_them_is(kinds, peak):
    assert peak_flops(kinds) == pytest.approx(peak * 1e12)
