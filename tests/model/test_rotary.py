"""The frequencies of rotary embeddings, by hand."""

import dataclasses

import numpy as np

from ale_jax.config.architecture import Llama3Scaling, Rope
from ale_jax.model.rope import rotary_frequencies

PLAIN = Rope(10_000.0, 8)
TRAINED = 8192.0
SCALED = dataclasses.replace(PLAIN, scaling=Llama3Scaling(8.0, 1.0, 4.0, TRAINED))


def test_each_pair_turns_a_tenth_as_fast_as_the_one_before():
    np.testing.assert_allclose(rotary_frequencies(PLAIN), [1.0, 0.1, 0.01, 0.001], rtol=1e-6)


def test_llama_3_slows_down_what_has_few_waves_in_the_trained_positions():
    # 8192 positions hold 1304, 130 and 13 waves of the first three, which are more than 4. Of the
    # last they hold 1.3038, which is kept to (1.3038 - 1) / (4 - 1) = 0.10127 and else slowed down
    # to an eighth: 0.10127 + 0.89873 / 8 = 0.21361.
    np.testing.assert_allclose(rotary_frequencies(SCALED), [1.0, 0.1, 0.01, 0.00021361], rtol=1e-4)


def test_llama_3_divides_what_has_less_than_one_wave_by_the_factor():
    scaling = Llama3Scaling(8.0, 1.0, 4.0, 100.0)  # 0.016 waves
    short = dataclasses.replace(SCALED, scaling=scaling)
    np.testing.assert_allclose(rotary_frequencies(short)[-1], 0.001 / 8, rtol=1e-6)
