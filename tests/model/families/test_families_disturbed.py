"""A family with each kind of layer, in packed rows, and in an engine whose conversations share
pages and give way, and whose weights change. `python -m benchmarks.families` does so with all."""

import pytest

from ale_jax.model.weights.load import load_params, open_checkpoint
from benchmarks.families.disturbed import as_alone, swapped_distance
from benchmarks.families.packed import ALONE, PACKED, distances
from benchmarks.families.parity import BAR, LOGIT_BAR
from benchmarks.families.tiny import make_model

pytestmark = [pytest.mark.heavy, pytest.mark.slow]

FAMILIES = {
    "cohere2": "parallel blocks, a window, no positions",
    "gpt_oss": "sinks, experts",
    "deepseek_v3": "latent attention, groups of experts",
    "qwen3_next": "gated delta, gated attention, shared experts",
    "lfm2": "short convolution",
    "gemma4_text": "two widths of heads, keys that are values",
    "ministral3": "scales by position",
}


@pytest.fixture(scope="module", params=FAMILIES)
def made(request, tmp_path_factory):
    """transformers' model, its weights and its shape."""
    folder = tmp_path_factory.mktemp(request.param)
    model = make_model(request.param)
    model.save_pretrained(folder)
    checkpoint = open_checkpoint(folder)
    return model, load_params(checkpoint), checkpoint.shape


@pytest.mark.parametrize("lengths", [ALONE, PACKED], ids=["alone", "packed"])
def test_rows_of_several_conversations_are_as_transformers_computes_each(made, lengths):
    assert max(distances(*made, lengths)) <= BAR


def test_whose_weights_change_goes_on_with_what_the_old_ones_have_read(made):
    assert swapped_distance(*made) <= LOGIT_BAR


def test_who_shares_pages_or_gives_way_gets_what_each_gets_alone(made):
    _, params, shape = made
    assert as_alone(params, shape) == (True, True)
