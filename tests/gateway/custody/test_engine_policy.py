"""A real engine behind the gateway: the ids are those of our own loop, whoever asks."""

import contextlib
import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import numpy as np
import openai
import pytest

from ale_jax.config.engine import Sampling
from ale_jax.engine.engine import Engine
from ale_jax.gateway.app import make_app
from ale_jax.gateway.custody.engine_policy import ChatRender, EnginePolicy, language_of
from ale_jax.gateway.custody.ledger import conversation_key
from ale_jax.gateway.custody.token_tree import TokenTree
from ale_jax.gateway.episode import EpisodeOptions, GatewayEpisode
from ale_jax.gateway.episodes import Episodes
from ale_jax.gateway.messages import ChatMessage, ToolCall
from ale_jax.gateway.requests import REQUIRED, ApiError, ChatRequest, SampleOptions
from ale_jax.gateway.server import served
from ale_jax.model.params import init_params
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from ale_jax.records import Episode, EpisodeKey, Task
from ale_jax.status import Status
from ale_jax.worlds.api import Message
from tests.engine.shapes import engine_shape
from tests.gateway.custody.talking import TalkingLedger, same_for_all
from tests.model.shapes import MOE, changed

KEY = EpisodeKey("train", 3, 1, Task("trail", 7, "train"))
FIRST = (ChatMessage("system", "Work."), ChatMessage("user", "Read lemon.txt."))
SEEN = [ChatMessage("tool", f"next: rose{n}.txt", answers="x") for n in range(3)]
REPLY_TOKENS = 9


@pytest.fixture(scope="module")
def tokenizer():
    messages = [{"role": m.role, "content": m.content} for m in (*FIRST, *SEEN)]
    return ChatTokenizer(train_bpe(messages * 10, 320))


@pytest.fixture(scope="module")
def engine(tokenizer):
    shape = changed(MOE, vocab_size=tokenizer.vocab_size)
    sizes = engine_shape(max_sequences=4, max_sequence_length=640, prefill_tokens=(16, 64))
    engine = Engine(shape, sizes, tokenizer.stop_ids, init_params(jax.random.key(0), shape))
    yield engine
    engine.close()


@pytest.fixture
def episode(engine, tokenizer):
    with opened(engine, tokenizer, REPLY_TOKENS) as episode:
        yield episode


@pytest.fixture
def long(engine, tokenizer):
    """An episode whose replies may be as long as a schema makes them."""
    with opened(engine, tokenizer, 90) as episode:
        yield episode


@contextlib.contextmanager
def opened(engine, tokenizer, reply_tokens, obeys=True):
    policy = EnginePolicy(engine, tokenizer, Sampling(), reply_tokens)
    keys, tree = partial(conversation_key, 0, KEY), TokenTree(ChatRender(tokenizer))
    episode = GatewayEpisode(
        tree, policy, language_of(tokenizer), keys, EpisodeOptions(obeys=obeys)
    )
    yield episode
    episode.end("all")


def ask(episode, messages, **options):
    request = ChatRequest("m", tuple(messages), options=SampleOptions(**options))
    return [episode.answer(each, request) for each in episode.ask(request)]


@pytest.mark.parametrize(
    "arguments",
    ['{"a": "\\ud800"}', '{"a": NaN}', '{"a": %s}' % ("[" * 480 + "]" * 480), "ls", "{"],
)
def test_arguments_that_no_prompt_can_hold_as_json_are_text(tokenizer, arguments):
    told = [*FIRST, ChatMessage("assistant", "", tool_calls=(ToolCall("bash", arguments),)), *SEEN]
    ids = ChatRender(tokenizer)(told, (), None)
    # A template writes them once more as JSON.
    assert json.dumps(arguments)[1:-1] in tokenizer.decode(ids)


@pytest.mark.heavy
def test_an_agent_behind_the_gateway_gets_the_tokens_of_our_own_loop(episode, engine, tokenizer):
    ledger = TalkingLedger(engine, tokenizer, 0, same_for_all(REPLY_TOKENS))
    ledger.open("own", KEY, Sampling())
    told, new = list(FIRST), FIRST
    for seen in SEEN:
        (choice,) = ask(episode, told)
        own = ledger.reply("own", [Message(each.role, each.content) for each in new])
        assert choice.message.content == own.text.strip()
        told, new = [*told, choice.message, seen], [seen]
    trajectory = ledger.close("own", Episode(KEY, Status.FINISHED, 1.0, 3, 0, 1.0, 0.5))
    (branch,) = episode.end("all")
    for turn, call in zip(trajectory.turns, branch.calls, strict=True):
        np.testing.assert_array_equal(call.prompt_ids, turn.prompt_ids)
        np.testing.assert_array_equal(call.sampled.ids, turn.action_ids)
        for name in ("logp_mu", "version"):
            np.testing.assert_array_equal(getattr(call.sampled, name), getattr(turn, name))


@pytest.mark.heavy
def test_what_was_sampled_is_read_again_only_where_a_branch_begins(episode, engine):
    (first,) = ask(episode, FIRST)
    before = engine.stats.prefilled_tokens
    told = [*FIRST, first.message, SEEN[0]]
    ask(episode, told)
    new = engine.stats.prefilled_tokens - before
    request = ChatRequest("m", tuple(told))
    assert 0 < new < episode.count_tokens(request) // 2
    ask(episode, told)  # the same again: another sample, in a conversation of its own
    assert engine.stats.prefilled_tokens - before > 2 * new
    whole, other = episode.end("all")
    assert (len(whole.calls), whole.num_shared) == (2, 0)
    assert (len(other.calls), other.num_shared) == (2, 1)


def test_several_replies_have_other_tokens_and_one_prompt(episode, engine):
    before = engine.stats.shared_tokens
    replies = ask(episode, [ChatMessage("user", "Read lemon.txt. " * 4)], n=3)
    assert len({each.message.content for each in replies}) == 3
    assert engine.stats.shared_tokens > before


def test_a_seed_gives_the_same_reply_again(episode):
    said = [ask(episode, FIRST, seed=seed, n=2) for seed in (7, 7, 8, -1)]
    texts = [tuple(choice.message.content for choice in choices) for choices in said]
    assert texts[0] == texts[1] and len({*texts[0], *texts[2], *texts[3]}) == 6


@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {"top_k": 1}, {"top_p": 1e-6}, {"min_p": 0.9999}], ids=str
)
def test_a_client_chooses_how_it_is_sampled(long, options):
    """Each of these leaves the most probable token alone, so that it is certain."""
    ask(long, FIRST, max_tokens=12, **options)
    ((call,),) = (branch.calls for branch in long.end("all"))
    assert not call.sampled.logp_mu.any() and (call.sampled.logp_plain < 0).all()


def test_a_reply_stops_before_the_text_that_was_asked_for(episode):
    (whole,) = ask(episode, FIRST, seed=7)
    text = whole.message.content
    assert len(text) > 4
    (cut,) = ask(episode, FIRST, seed=7, stop=("not there", text[3:5]))
    assert (cut.message.content, cut.finish) == (text[:3].strip(), "stop")
    (next_one,) = ask(episode, [*FIRST, cut.message, SEEN[0]])
    longest, *_ = episode.end("all")
    assert [call.reply for call in longest.calls] == [cut.message, next_one.message]


LOOK = {
    "type": "object",
    "properties": {"path": {"type": "string", "maxLength": 8}, "lines": {"enum": [1, 20]}},
    "required": ["path", "lines"],
    "additionalProperties": False,
}
TOOLS = tuple(
    {"type": "function", "function": {"name": name, "description": "", "parameters": schema}}
    for name, schema in (("look", LOOK), ("wait", {"type": "object", "maxProperties": 0}))
)


def answer(episode, **fields):
    request = ChatRequest("m", FIRST, **fields)
    return [episode.answer(each, request) for each in episode.ask(request)]


def test_a_policy_that_knows_nothing_is_held_to_a_schema(long):
    for choice in answer(long, schema=LOOK, options=SampleOptions(n=12)):
        found = json.loads(choice.message.content)
        assert found.keys() == {"path", "lines"} and found["lines"] in (1, 20)
        assert choice.finish == "stop"


@pytest.mark.parametrize(("wanted", "names"), [(REQUIRED, {"look", "wait"}), ("look", {"look"})])
def test_a_policy_that_knows_nothing_is_made_to_call_a_tool(long, wanted, names):
    called = set()
    for _ in range(4):
        asked = {"tools": TOOLS, "tool_choice": wanted, "parallel_calls": False}
        for choice in answer(long, **asked, options=SampleOptions(n=4)):
            (call,) = choice.message.tool_calls
            assert (choice.message.content, choice.finish) == ("", "tool_calls")
            assert json.loads(call.arguments).keys() in ({"path", "lines"}, set())
            called.add(call.name)
    assert called == names


def test_a_schema_that_is_none_is_refused(long):
    with pytest.raises(ApiError, match="not a schema") as refused:
        answer(long, schema={"type": "nothing"})
    assert refused.value.status == 400


def test_others_get_the_same_tokens_beside_a_reply_that_is_held_to_a_schema(long, episode):
    (alone,) = ask(episode, FIRST, seed=5)
    with ThreadPoolExecutor(2) as pool:
        held = pool.submit(answer, long, schema=LOOK, options=SampleOptions(n=2))
        beside = [ask(episode, FIRST, seed=5)[0].message.content for _ in range(3)]
        held.result()
    assert beside == [alone.message.content] * 3


@pytest.mark.parametrize("obeys", [True, False])
def test_priorities_are_for_who_serves_and_not_for_training(engine, tokenizer, monkeypatch, obeys):
    asked, reply = [], engine.reply
    monkeypatch.setattr(engine, "reply", lambda *each: asked.append(each[-1]) or reply(*each))
    with opened(engine, tokenizer, REPLY_TOKENS, obeys) as episode:
        ask(episode, FIRST, priority=3)
    assert [options.priority for options in asked] == [3 if obeys else 0]


def test_tokens_are_pushed(long, tokenizer):
    token = int(tokenizer.reply_ids("x")[0])
    (choice,) = answer(long, options=SampleOptions(logit_bias={token: 100.0}, max_tokens=6))
    assert choice.message.content == "x" * 6
    once = SampleOptions(logit_bias={token: 50.0}, presence_penalty=50.0, max_tokens=20)
    (choice,) = answer(long, options=dataclasses.replace(once, seed=1))
    assert choice.message.content.startswith("x") and choice.message.content.count("x") < 4
    (choice,) = answer(long, options=SampleOptions(logit_bias={2: 90.0}, min_tokens=5))
    (call,) = long.end("longest")[0].calls
    assert len(call.sampled.ids) >= 6


def test_a_bias_of_a_token_that_there_is_not_is_refused(long):
    with pytest.raises(ApiError, match="logit_bias names token 9999"):
        answer(long, options=SampleOptions(logit_bias={9999: 1.0}))


def test_a_number_too_large_for_the_device_is_refused_and_the_engine_goes_on(episode):
    with pytest.raises(ApiError, match=f"top_k {2**31} must be in") as refused:
        ask(episode, FIRST, top_k=2**31)
    assert refused.value.status == 400
    large = {"top_k": 2**31 - 1, "min_tokens": 2**80, "max_tokens": 2**80, "seed": 2**80}
    (choice,) = ask(episode, FIRST, priority=2**63, **large)
    assert choice.finish == "length"


def test_log_probabilities_are_shown_of_what_was_written_and_of_the_most_probable(long):
    (choice,) = answer(long, options=SampleOptions(top_logprobs=3, max_tokens=5))
    (branch,) = long.end("all")
    sampled = branch.calls[0].sampled
    assert [each.logprob for each in choice.logprobs] == sampled.logp_plain.tolist()
    for each, best in zip(choice.logprobs, sampled.top_logp_Tk, strict=True):
        assert len(each.top) == 3 and [t.logprob for t in each.top] == best.tolist()
        assert max(best) >= each.logprob - 1e-6


def test_the_bytes_of_tokens_are_shown_though_they_are_parts_of_a_character(long, tokenizer):
    token = int(tokenizer.reply_ids("😀")[1])
    options = SampleOptions(top_logprobs=20, logit_bias={token: 100.0}, max_tokens=1)
    (choice,) = answer(long, options=options)
    (shown,) = choice.logprobs
    assert (shown.text, shown.data) == ("\ufffd", b"\x9f")
    told = [(each.text, each.data) for each in shown.top if each.data is not None]
    assert told and all(data.decode(errors="replace") == text for text, data in told)


def test_where_few_tokens_are_allowed_only_these_are_shown(long):
    (choice,) = answer(long, schema=LOOK, options=SampleOptions(top_logprobs=20))
    shown = [token.logprob for each in choice.logprobs for token in each.top]
    assert np.isfinite(shown).all(), "JSON has no other numbers"
    assert len(choice.logprobs[-1].top) == 1, "an object that is complete can only end"


def test_a_full_context_is_said(episode):
    long = ChatMessage("user", "Read lemon.txt. " * 400)
    with pytest.raises(ApiError, match="fills the policy's context") as full:
        ask(episode, [long])
    assert full.value.status == 400


def test_openais_client_talks_to_the_engine(engine, tokenizer):
    episodes, policy = Episodes(), EnginePolicy(engine, tokenizer, Sampling(), REPLY_TOKENS)
    tree = TokenTree(ChatRender(tokenizer))
    keys = partial(conversation_key, 0, KEY)
    token = episodes.open(GatewayEpisode(tree, policy, language_of(tokenizer), keys))
    with served(make_app(episodes, "policy")) as url:
        client = openai.OpenAI(base_url=url, api_key=token, max_retries=0)
        messages = [{"role": "user", "content": "Read lemon.txt."}]
        for _ in range(3):
            found = client.chat.completions.create(model="policy", messages=messages)
            messages.append({"role": "assistant", "content": found.choices[0].message.content})
            messages.append({"role": "user", "content": "And on."})
            assert 0 < found.usage.completion_tokens <= REPLY_TOKENS
            with client.chat.completions.create(
                model="policy", messages=messages[:1], seed=7, stream=True
            ) as stream:
                parts = [chunk.choices[0].delta.content for chunk in stream]
            assert len(parts) > 2, "the reply was sent in pieces"
            again = client.chat.completions.create(model="policy", messages=messages[:1], seed=7)
            assert "".join(part or "" for part in parts) == again.choices[0].message.content
    branches = episodes.end(token, "all")
    assert max(len(branch.calls) for branch in branches) == 3, (
        "replies came back as they were sampled"
    )


@pytest.mark.heavy
def test_more_conversations_than_the_engine_has_places_for_all_get_their_turn(engine, tokenizer):
    """Three episodes with four conversations each, over four slots; each twice."""
    policy = EnginePolicy(engine, tokenizer, Sampling(), REPLY_TOKENS)

    def play(number):
        tree, language = TokenTree(ChatRender(tokenizer)), language_of(tokenizer)
        episode = GatewayEpisode(tree, policy, language, partial(conversation_key, number, KEY))
        starts = [(*FIRST, ChatMessage("user", f"part {n}")) for n in range(4)]
        with ThreadPoolExecutor(4) as pool:
            replies = list(pool.map(lambda start: ask(episode, start)[0].message, starts))
            list(
                pool.map(
                    lambda start, reply: ask(episode, [*start, reply, SEEN[0]]), starts, replies
                )
            )
        return episode.end("all")

    with ThreadPoolExecutor(3) as pool:
        for branches in pool.map(play, range(3)):
            assert [len(branch.calls) for branch in branches] == [2] * 4
