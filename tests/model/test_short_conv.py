"""A short convolution sees the last tokens of its own segment, and goes on where it stopped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.config.architecture import ShortConv
from ale_jax.model.params import _short_conv_table, init_table
from ale_jax.model.short_conv import ConvState, extended_conv, packed_conv

D, C = 16, 24
KIND = ShortConv(C, conv_width=4, bias=True)
LAYER = {
    name: each + 0.1 * ("bias" in name)
    for name, each in init_table(jax.random.key(0), _short_conv_table(D, KIND)).items()
}
H_BTD = jax.random.normal(jax.random.key(1), (2, 30, D))
CLOSE = 1e-6


def _alone(h_TD):
    """Token by token, as it is defined."""
    own = {name.removeprefix("short_"): np.asarray(each) for name, each in LAYER.items()}
    before, after, x = (
        h_TD @ own[f"{each}_DC"] + own[f"{each}_bias_C"] for each in ("before", "after", "x")
    )
    seen = np.pad(before * x, ((3, 0), (0, 0)))
    conv = [(seen[t : t + 4] * own["conv_Ci"].T).sum(axis=0) for t in range(len(h_TD))]
    return (after * (np.stack(conv) + own["conv_bias_C"])) @ own["out_CD"] + own["out_bias_D"]


def test_a_segment_is_what_it_is_alone():
    segment_BT = np.repeat([[1] * 2 + [2] * 20 + [3] * 5 + [0] * 3], 2, axis=0)
    packed = packed_conv(LAYER, H_BTD, segment_BT, KIND)
    for start, stop in ((0, 2), (2, 22), (22, 27)):
        for row in range(2):
            expected = _alone(np.asarray(H_BTD[row, start:stop]))
            np.testing.assert_allclose(packed[row, start:stop], expected, atol=CLOSE)


@pytest.mark.parametrize("counts", [(2, 0, 20, 1, 1, 6), (1, 1, 1, 27)])
def test_what_is_appended_continues_the_row(counts):
    """Chunks with padding, some shorter than what is remembered."""
    state, outs, start = ConvState.zeros(2, KIND, jnp.float32), [], 0
    for count in counts:
        chunk = H_BTD[:, start : start + count]
        padded = jnp.pad(chunk, ((0, 0), (0, 2), (0, 0)), constant_values=7.0)
        is_real = jnp.tile(jnp.arange(count + 2) < count, (2, 1))
        out, state = extended_conv(LAYER, padded, is_real, state, KIND)
        outs.append(out[:, :count])
        start += count
    expected = packed_conv(LAYER, H_BTD, jnp.ones((2, 30), jnp.int32), KIND)
    np.testing.assert_allclose(jnp.concatenate(outs, axis=1), expected, atol=CLOSE)
