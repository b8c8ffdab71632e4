"""What the engine writes with the weights of each family, while others take its place and its
weights change, against an engine that nobody disturbs and against transformers."""

from __future__ import annotations

import contextlib
import copy
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from transformers import PreTrainedModel

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.engine import EngineShape, Sampling
from ale_jax.engine.engine import Engine
from ale_jax.engine.request import RequestOptions, Sampled
from ale_jax.model.params import Params
from ale_jax.model.weights.load import load_params, open_checkpoint
from benchmarks.families.tiny import VOCAB

SIZES = EngineShape(
    max_sequences=2,
    max_sequence_length=96,
    decode_steps=4,
    prefill_tokens=(8, 16),
    prefill_rows=1,
    prefill_budget=64,
    page_tokens=8,
    pages=14,  # those of little more than one conversation of full length
)
NO_STOP = (VOCAB,)  # no token ends a reply
PLAIN, GREEDY = Sampling(), Sampling(temperature=0.0)
CONVERSATIONS, TURNS, REPLY = 4, 2, 20
BEGINNING = 20  # tokens that all of them begin with: two full pages
PATIENCE_S = 300.0  # the first reply waits for the program
SWAP_AFTER = 10  # tokens, of which a dispatch writes four


def as_alone(params: Params, shape: PolicyShape) -> tuple[bool, bool]:
    """Returns whether conversations get, to the last bit, what each gets alone: where they find
    what they begin with in the cache, and where they take each other's place. States cannot be
    shared: of a recurrent policy they find nothing."""
    with _engine(params, shape) as engine:
        in_turn = [_play(engine, n) for n in range(CONVERSATIONS)]
        assert (engine.stats.shared_tokens > 0) != shape.is_recurrent
    with _engine(params, shape) as engine, ThreadPoolExecutor(CONVERSATIONS) as pool:
        together = list(pool.map(lambda n: _play(engine, n), range(CONVERSATIONS)))
        assert engine.stats.preemptions > 0
    alone = _alone(params, shape)
    return in_turn == alone, together == alone


def swapped_distance(model: PreTrainedModel, params: Params, shape: PolicyShape) -> float:
    """Returns how far the logits of greedy tokens are from transformers' where the weights change
    within the reply, and what was read before stays in the cache: the largest by which a token's
    logit is below the maximum, or its log-probability differs."""
    other, prompt = _other(model), _ids(0, 12)
    with _engine(params, shape) as engine:
        changed = _read(other)

        def swap(ids: np.ndarray) -> None:
            if len(ids) >= SWAP_AFTER:
                engine.publish(changed, 1)

        options = RequestOptions(stop_checker=swap)
        asked = engine.reply(engine.open(), prompt, REPLY, GREEDY, _key(0), options)
        reply = asked.result(PATIENCE_S)
    assert set(reply.version.tolist()) == {0, 1}
    logit_TV = _with_changing_weights((model, other), prompt, reply)
    picked_T = np.take_along_axis(logit_TV, reply.ids[:, None], axis=-1)[:, 0]
    logp_T = picked_T - np.logaddexp.reduce(logit_TV, axis=-1)
    below_T = logit_TV.max(axis=-1) - picked_T
    return float(max(below_T.max(), np.abs(reply.logp_plain - logp_T).max()))


def _with_changing_weights(
    models: Sequence[PreTrainedModel], prompt: np.ndarray, reply: Sampled
) -> np.ndarray:
    """Returns transformers' logits [T,V] of a reply, each token read by the model of the version
    that wrote the one after it."""
    ids = torch.from_numpy(np.concatenate([prompt, reply.ids])).long()[None]
    start, found = len(prompt) - 1, []
    with torch.no_grad():
        cache = models[0](ids[:, :start], use_cache=True).past_key_values
        for at, version in enumerate(reply.version, start):
            out = models[version](ids[:, at : at + 1], past_key_values=cache, use_cache=True)
            found.append(out.logits[0, -1])
            cache = out.past_key_values
    return torch.stack(found).numpy()


def _other(model: PreTrainedModel) -> PreTrainedModel:
    """Returns a model that computes something else with the same shape."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1.2)
    return other


def _read(model: PreTrainedModel) -> Params:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_params(open_checkpoint(folder))


def _alone(params: Params, shape: PolicyShape) -> list[list[tuple[bytes, ...]]]:
    played = []
    for number in range(CONVERSATIONS):
        with _engine(params, shape) as engine:
            played.append(_play(engine, number))
            assert engine.stats.preemptions == engine.stats.shared_tokens == 0
    return played


def _play(engine: Engine, number: int) -> list[tuple[bytes, ...]]:
    """Returns the bits of ids and log-probabilities of each reply."""
    conversation, replies = engine.open(), []
    for turn in range(TURNS):
        ids = _ids(TURNS * number + turn, 5)
        ids = ids if turn else np.concatenate([_ids(99, BEGINNING), ids])
        asked = engine.reply(conversation, ids, REPLY, PLAIN, _key(number))
        replies.append(asked.result(PATIENCE_S))
    engine.end(conversation)
    return [(r.ids.tobytes(), r.logp_plain.tobytes(), r.logp_mu.tobytes()) for r in replies]


def _engine(params: Params, shape: PolicyShape) -> contextlib.closing[Engine]:
    return contextlib.closing(Engine(shape, SIZES, NO_STOP, params))


def _ids(number: int, length: int) -> np.ndarray:
    return np.random.default_rng(number).integers(3, VOCAB - 1, length, np.int32)


def _key(number: int) -> np.ndarray:
    return np.array([7, number], np.uint32)
