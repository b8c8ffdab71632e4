"""A teacher behind an endpoint: its log-probabilities are those of its weights, and what else it
may say is refused."""

import jax
import numpy as np
import pytest

from ale_jax.config.hardware import MeshShape
from ale_jax.config.learn import Shape
from ale_jax.data.packing import Sample, pack
from ale_jax.errors import RunFailed
from ale_jax.learn.scores import make_score
from ale_jax.model.params import init_params
from ale_jax.model.policy import hidden_states, logits
from ale_jax.model.sharding import make_mesh
from ale_jax.records import FORCED
from ale_jax.system.teacher_endpoint import TeacherEndpoint
from ale_jax.worlds.endpoint import Endpoint
from tests.data.make_trajectories import make_turn
from tests.evaluation.endpoint import endpoint
from tests.model.shapes import DENSE

PARAMS = init_params(jax.random.key(3), DENSE)
TOP = 4


def _prompt_logprobs(asked):
    """As vLLM documents them: of the token itself and the most probable ones, by their ids."""
    ids = np.array([asked["prompt"]])
    place = np.arange(ids.shape[1])[None]
    hidden, _ = hidden_states(PARAMS, ids, place, np.ones_like(ids), DENSE)
    logp_TV = np.asarray(jax.nn.log_softmax(logits(PARAMS, hidden)[0]))
    told = [None]
    for token, logp_V in zip(ids[0, 1:], logp_TV, strict=False):
        best = np.argsort(-logp_V)[: asked["prompt_logprobs"]]
        told.append({str(n): {"logprob": float(logp_V[n])} for n in {int(token), *best.tolist()}})
    return {"choices": [{"text": "x", "prompt_logprobs": told}]}


def _served(answer=_prompt_logprobs, status=200):
    return endpoint(lambda body: (status, answer(body)))


def _teacher(url, top=TOP):
    return TeacherEndpoint(Endpoint(url, "large", "secret"), top, DENSE.vocab_size)


@pytest.fixture(scope="module")
def batch():
    """Conversations of several turns, two of which share a row."""
    samples = [
        Sample((make_turn([1, 2], [3, 4]), make_turn([5, 6], [7, 8, 9])), np.ones(2, np.float32)),
        Sample((make_turn([9], [10, 11]),), np.ones(1, np.float32)),
    ]
    packed, rest = pack(samples, Shape(8, 16, 4))
    assert not rest and packed.segment_BT.max() == 2
    return packed


@pytest.mark.heavy
@pytest.mark.parametrize("top", [0, TOP])
def test_it_scores_what_its_weights_would(batch, top):
    with _served() as (url, asked):
        (found,) = _teacher(url, top).scores([batch])
    own = make_score(DENSE, make_mesh(MeshShape(data=-1)), top=top)(PARAMS, batch)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), found, own)
    assert len(asked) == 2, "one request for each conversation"
    for body in asked:
        assert body["path"] == "/v1/completions" and body["authorization"] == "Bearer secret"
        assert body["model"] == "large"
    assert sorted(body["prompt"] for body in asked) == [[*range(1, 10)], [9, 10, 11]]


def _changed(change):
    def answer(body):
        told = _prompt_logprobs(body)
        change(told["choices"][0])
        return told

    return answer


def _each(value):
    return _changed(
        lambda c: c.update(prompt_logprobs=[None, *[value] * (len(c["prompt_logprobs"]) - 1)])
    )


WRONG = {
    "no log-probabilities": (lambda body: {"choices": [{"text": "x"}]}, 200, "answers 200"),
    "too few": (_changed(lambda c: c["prompt_logprobs"].pop()), 200, "answers 200"),
    "an error": (lambda body: {"error": "max_logprobs is 20"}, 400, "max_logprobs is 20"),
    "not a number": (_each({"1": {"logprob": None}}), 200, "of a token"),
    "endless": (_each({"1": {"logprob": -(10**400)}}), 200, "of a token"),
    "nan": (_each({"1": {"logprob": float("nan")}}), 200, "of a token"),
    "more than certain": (_each({"1": {"logprob": 0.5}}), 200, "of a token"),
    "another token": (_each({"77": {"logprob": -1.0}}), 200, "tells 1 tokens in the place of"),
}


@pytest.mark.heavy
@pytest.mark.parametrize(("answer", "status", "why"), WRONG.values(), ids=WRONG)
def test_what_is_no_log_probability_ends_the_run_with_its_reason(batch, answer, status, why):
    with _served(answer, status) as (url, _), pytest.raises(RunFailed, match=why):
        _teacher(url).scores([batch])


def test_replies_that_were_held_to_a_schema_are_refused(batch):
    mask_id_BT = np.where(batch.chunk_BT >= 0, FORCED, -1).astype(np.int16)
    held = type(batch)(**vars(batch) | {"mask_id_BT": mask_id_BT})
    with pytest.raises(RunFailed, match=r"held to a schema.*teacher\.weights"):
        _teacher("http://127.0.0.1:1/v1").scores([held])
