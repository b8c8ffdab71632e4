"""Replies that are held to a schema, or cut to the most probable tokens, on their way from the
engine into training."""

import dataclasses

import jax
import numpy as np
import openai
import pytest

from ale_jax.config.engine import Sampling
from ale_jax.config.learn import Shape
from ale_jax.data.packing import Sample, pack
from ale_jax.engine.engine import Engine
from ale_jax.gateway.app import make_app
from ale_jax.gateway.custody.ledger import Ledger
from ale_jax.gateway.custody.sampling_masks import MaskTable
from ale_jax.gateway.messages import ChatMessage
from ale_jax.gateway.requests import REQUIRED, ApiError, ChatRequest, SampleOptions
from ale_jax.gateway.server import served
from ale_jax.learn.scores import make_logp
from ale_jax.model.params import init_params
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from ale_jax.records import FORCED, FREE, Episode, EpisodeKey, Task
from ale_jax.status import Status
from tests.engine.shapes import engine_shape
from tests.gateway.custody.talking import same_for_all
from tests.model.meshes import mesh_of
from tests.model.shapes import MOE, changed

KEY = EpisodeKey("train", 3, 1, Task("trail", 7, "train"))
EPISODE = Episode(KEY, Status.FINISHED, 1.0, 2, 0, 1.0, 0.5)
TASK = (ChatMessage("system", "Work."), ChatMessage("user", "Read lemon.txt."))
LOOK = {
    "type": "object",
    "properties": {"path": {"type": "string", "maxLength": 8}, "lines": {"enum": [1, 20]}},
    "required": ["path", "lines"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look", "description": "", "parameters": LOOK}}
CALLS = {"tools": (TOOL,), "tool_choice": REQUIRED, "parallel_calls": False}
LONGEST = 640
MESH = mesh_of()


@pytest.fixture(scope="module")
def tokenizer():
    messages = [{"role": m.role, "content": m.content} for m in TASK]
    return ChatTokenizer(train_bpe(messages * 10, 320))


@pytest.fixture(scope="module")
def policy(tokenizer):
    shape = changed(MOE, vocab_size=tokenizer.vocab_size + 5)  # as padded ones are
    params = init_params(jax.random.key(0), shape)
    # As they are, they write one token again and again.
    return shape, params | {"final_norm_D": 0.2 * params["final_norm_D"]}


@pytest.fixture(scope="module")
def engine(tokenizer, policy):
    sizes = engine_shape(max_sequence_length=LONGEST, prefill_tokens=(16, 64))
    engine = Engine(policy[0], sizes, tokenizer.stop_ids, policy[1], record_left=True)
    yield engine
    engine.close()


@pytest.fixture
def ledger(engine, tokenizer):
    return Ledger(engine, tokenizer, seed=0, limits=same_for_all(90))


def ask(ledger, *messages, **fields):
    """As an agent does through the gateway."""
    episode = ledger.episodes.find("a")
    request = ChatRequest("m", messages, **fields)
    return [episode.answer(each, request).message for each in episode.ask(request)]


def played(ledger, **sampling):
    """A conversation of a call, a free reply, a call and a reply of a schema. For the free one, the
    agent asks to be answered in another way."""
    ledger.open("a", KEY, Sampling(**sampling))
    told = [*TASK]
    asked = SampleOptions(max_tokens=20, temperature=0.1, top_k=1, top_p=0.1, min_p=0.9)
    free = {"tools": (TOOL,), "options": asked}
    for fields in (CALLS, free, CALLS, {"tools": (TOOL,), "schema": LOOK}):
        (reply,) = ask(ledger, *told, **fields)
        told += [reply, ChatMessage("user", "next")]
    trajectory = ledger.close("a", EPISODE)
    assert len(trajectory.turns) == 4 and not trajectory.side_branches
    return trajectory


def packed(trajectory):
    credit_C = np.ones(len(trajectory.turns), np.float32)
    batch, leftover = pack([Sample.of(trajectory, credit_C)], Shape(8, LONGEST, 8))
    assert not leftover
    return batch


@pytest.mark.heavy
def test_the_learner_finds_the_log_probabilities_that_the_engine_sampled_with(ledger, policy):
    shape, params = policy
    batch = packed(played(ledger))
    logp, plain = make_logp(shape, MESH), dataclasses.replace(batch, mask_id_BT=None, mask_BIw=None)
    gap_BT = np.abs(logp(params, batch) - batch.logp_old_BT)
    blind_BT = np.abs(logp(params, plain) - batch.logp_old_BT)
    action_BT, id_BT = batch.chunk_BT >= 0, batch.mask_id_BT
    masked_BT, forced_BT, free_BT = id_BT >= 0, id_BT == FORCED, (id_BT == FREE) & action_BT
    assert masked_BT.sum() > 20 and forced_BT.sum() > 20 and free_BT.sum() == 20
    # As the tests of the engine allow of tokens without masks.
    assert gap_BT[masked_BT].mean() < 1e-5 and gap_BT[free_BT].mean() < 1e-5
    assert blind_BT[masked_BT].mean() > 0.1 and blind_BT[forced_BT].mean() > 1.0
    np.testing.assert_array_equal(gap_BT[free_BT], blind_BT[free_BT])
    for logp_BT in (logp(params, batch), batch.logp_old_BT, batch.logp_mu_BT):
        assert not logp_BT[forced_BT].any(), "there was no choice"


@pytest.mark.heavy
@pytest.mark.parametrize(
    "sampling",
    [
        *({"temperature": t} for t in (0.5, 0.7, 1.3)),
        {"top_p": 0.8},
        {"top_k": 20},
        {"min_p": 0.3},
        {"temperature": 0.7, "top_p": 0.8, "top_k": 20},
    ],
    ids=str,
)
def test_the_ratio_is_one_before_the_first_update_however_it_was_sampled(ledger, policy, sampling):
    shape, params = policy
    trajectory = played(ledger, **sampling)
    assert trajectory.sampling == Sampling(**sampling), "and not as the agent asked"
    batch, logp = packed(trajectory), make_logp(shape, MESH)
    plain = dataclasses.replace(batch, temperature_BT=None, mask_id_BT=None, mask_BIw=None)
    written_BT, id_BT = batch.chunk_BT >= 0, batch.mask_id_BT
    np.testing.assert_array_equal(batch.logp_mu_BT, batch.logp_old_BT)
    ratio_BT = np.exp(logp(params, batch) - batch.logp_mu_BT)[written_BT]
    np.testing.assert_allclose(ratio_BT, 1.0, atol=2e-4)
    assert np.abs(ratio_BT - 1.0).mean() < 1e-5
    free_BT = batch.chunk_BT == 1
    assert free_BT.sum() > 5
    blind_BT = np.abs(logp(params, plain) - batch.logp_mu_BT)
    assert blind_BT[free_BT].mean() > 0.01, "what the reference of this test must not be"
    if Sampling(**sampling).cuts:
        assert (id_BT[written_BT] != FREE).all() and (id_BT[free_BT] >= 0).sum() > 5
    else:
        assert (id_BT[free_BT] == FREE).all()


def test_every_token_is_one_that_its_mask_allows_and_masks_repeat(ledger):
    trajectory = played(ledger)
    call, free, again, content = trajectory.turns
    assert free.mask_id is None and trajectory.mask_Iw.dtype == np.int32
    seen = 0
    for turn in (call, again, content):
        assert turn.mask_id.dtype == np.int16 and turn.mask_id.shape == turn.action_ids.shape
        assert turn.mask_id[-1] == FORCED, "after the whole call there is only its end"
        for token, number in zip(turn.action_ids, turn.mask_id, strict=True):
            if number >= 0:
                seen += 1
                assert trajectory.mask_Iw[number, token // 32] >> token % 32 & 1
    assert len(trajectory.mask_Iw) < 0.7 * seen
    assert len(np.unique(trajectory.mask_Iw, axis=0)) == len(trajectory.mask_Iw)


def test_schemas_that_allow_too_many_sets_are_refused_and_the_episode_goes_on(ledger, monkeypatch):
    monkeypatch.setattr("ale_jax.gateway.custody.sampling_masks.MAX_MASKS", 2)
    ledger.open("a", KEY, Sampling())
    with served(make_app(ledger.episodes, "policy")) as url:
        client = openai.OpenAI(base_url=url, api_key="a", max_retries=0)
        asked = {"model": "policy", "messages": [{"role": "user", "content": "Read lemon.txt."}]}
        with pytest.raises(openai.BadRequestError, match="2 different sets of tokens"):
            client.chat.completions.create(**asked, tools=[TOOL], tool_choice="required")
        client.chat.completions.create(**asked)
    trajectory = ledger.close("a", EPISODE)
    assert trajectory.episode.status is Status.FINISHED and len(trajectory.turns) == 1
    assert trajectory.turns[0].mask_id is None and (packed(trajectory).mask_id_BT == FREE).all()


def test_a_reply_that_is_cut_off_has_the_masks_of_what_was_written(ledger):
    ledger.open("a", KEY, Sampling())
    ask(ledger, *TASK, **CALLS, options=SampleOptions(max_tokens=7))
    (turn,) = ledger.close("a", EPISODE).turns
    assert len(turn.mask_id) == len(turn.action_ids) == 7


@pytest.mark.parametrize("most, sampling", [("MAX_MASKS", {}), ("MAX_CUT_MASKS", {"top_p": 0.8})])
def test_a_table_numbers_distinct_masks_until_it_is_full(monkeypatch, most, sampling):
    monkeypatch.setattr(f"ale_jax.gateway.custody.sampling_masks.{most}", 2)
    table = MaskTable(Sampling(**sampling))
    assert table.masks() is None
    one, two = np.array([3, 0], np.int32), np.array([3, 1 << 30], np.int32)
    last = np.array([0, 1 << 31], np.uint32).view(np.int32)
    assert [table.number(mask) for mask in (last, one, two, one)] == [FORCED, 0, 1, 0]
    np.testing.assert_array_equal(table.masks(), [one, two])
    with pytest.raises(ApiError, match="may draw from 2 different sets of tokens"):
        table.number(np.array([7, 0], np.int32))
