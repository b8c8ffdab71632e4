"""The engine samples from each family what transformers does: in pages, with windows that have
passed, beside others, and after another conversation has taken its place."""

import contextlib

import numpy as np
import pytest
import torch

from ale_jax.config.engine import Sampling
from ale_jax.engine.engine import Engine
from ale_jax.model.weights.load import load_params, open_checkpoint
from benchmarks.families.tiny import OF_FAMILY, make_model
from tests.engine.playing import PATIENCE, key, prompt
from tests.engine.shapes import engine_shape

pytestmark = [pytest.mark.heavy, pytest.mark.slow]

GREEDY = Sampling(temperature=0.0)
WRITTEN = 64
NEVER = (95,)  # a stop id that the prompts do not ask for
CLOSE = 2e-4  # of logits up to about 10, after 76 tokens
PAGES = 14  # of 8 tokens: two conversations of 80 do not fit, so that they take turns


@pytest.mark.parametrize("family", OF_FAMILY)
def test_greedy_tokens_are_theirs(family, tmp_path):
    model = make_model(family)
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    params = load_params(checkpoint)
    prompts = [prompt(number, 12) for number in range(3)]
    engine = Engine(checkpoint.shape, engine_shape(pages=PAGES), NEVER, params)
    with contextlib.closing(engine):
        asked = [
            engine.reply(engine.open(), ids, WRITTEN, GREEDY, key(number))
            for number, ids in enumerate(prompts)
        ]
        replies = [each.result(PATIENCE) for each in asked]
    for ids, reply in zip(prompts, replies, strict=True):
        whole = np.concatenate([ids, reply.ids])
        with torch.no_grad():
            logit_TV = model(torch.from_numpy(whole[None]).long()).logits[0].numpy()
        logit_TV = logit_TV[len(ids) - 1 : -1]
        picked_T = np.take_along_axis(logit_TV, reply.ids[:, None], axis=-1)[:, 0]
        # Where two tokens are equal to rounding, either may be taken.
        assert (logit_TV.max(axis=-1) - picked_T <= CLOSE).all()
        logp_T = picked_T - np.log(np.exp(logit_TV).sum(axis=-1))
        np.testing.assert_allclose(reply.logp_plain, logp_T, atol=CLOSE)
