"""The engine samples from each family what transformers does: in pages, with windows that have
passed, beside others, and after another conversation has taken its place."""

import contextlib

import numpy as np
import pytest
import torch

from ale_jax.config.engine import Sampling
from ale_jax.engine.engine import Engine
from ale_jax.model.weights.load import load_params, open_checkpoint
from tests.engine.playing import PATIENCE, key, prompt
from tests.engine.shapes import engine_shape
from tests.model.families.tiny import OF_FAMILY, make_model

pytestmark = [pytest.mark.heavy, pytest.mark.slow]

GREEDY = Sampling(temperature=0.0)
WRITTEN = 64
NEVER = (95,)  # a stop id that the prompts do not ask for
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
        replies = [each.result(PATIENCE).ids for each in asked]
    for ids, reply in zip(prompts, replies, strict=True):
        whole = np.concatenate([ids, reply])
        with torch.no_grad():
            logits_TV = model(torch.from_numpy(whole[None]).long()).logits[0].numpy()
        chosen = logits_TV[len(ids) - 1 : -1]
        largest = np.abs(logits_TV).max()
        # Where two tokens are equal to rounding, either may be taken.
        missed = chosen.max(axis=-1) - np.take_along_axis(chosen, reply[:, None], axis=-1)[:, 0]
        assert (missed <= 2e-5 * largest).all()
        assert len(set(reply.tolist())) > 3, "a reply that would show nothing"
