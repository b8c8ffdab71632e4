"""What guides a reply: whatever a grammar lets through is what was asked for."""

import contextlib
import dataclasses
import json

import numpy as np
import pytest

from ale_jax.gateway.custody.constraints import Grammar, GrammarAndBias, LogitsBias
from ale_jax.gateway.custody.engine_policy import language_of
from ale_jax.gateway.custody.sampling_masks import MaskTable, allows_only, only_token
from ale_jax.gateway.formats import families
from ale_jax.gateway.formats.families import format_named
from ale_jax.gateway.formats.harmony import PIECES
from ale_jax.gateway.messages import ChatMessage
from ale_jax.gateway.requests import AUTO, REQUIRED, ApiError, ChatRequest
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from ale_jax.records import FORCED

LOOK = {
    "type": "object",
    "properties": {"path": {"type": "string", "maxLength": 8}},
    "required": ["path"],
    "additionalProperties": False,
}
TOOLS = tuple(
    {"type": "function", "function": {"name": name, "description": "", "parameters": schema}}
    for name, schema in (("look", LOOK), ("wait", {"type": "object", "maxProperties": 0}))
)
FORMATS = [name for name in families.FORMATS if name != "gemma4"]  # which has no grammars
ASKED = ChatRequest("m", (ChatMessage("user", "x"),), TOOLS, REQUIRED)


@pytest.fixture(scope="module")
def tokenizer():
    trained = train_bpe([{"role": "user", "content": "Read lemon.txt."}] * 10, 320)
    trained.add_special_tokens(
        {"additional_special_tokens": ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", *PIECES]}
    )
    return ChatTokenizer(trained)


def language(tokenizer, name):
    found = language_of(tokenizer)
    object.__setattr__(found, "format", format_named(name))
    return found


def allowed(next_token, vocab_size):
    bits = np.unpackbits(next_token.allowed_w.view(np.uint8), bitorder="little")
    return np.flatnonzero(bits[:vocab_size])


def following(guide, ids):
    (held,) = guide.next(ids, 1)
    return held


def drawn(guide, tokenizer, rng):
    """A reply whose tokens are drawn evenly from those that are allowed."""
    ids = np.zeros((0,), np.int32)
    while True:
        token = rng.choice(allowed(following(guide, ids), tokenizer.vocab_size))
        ids = np.append(ids, np.int32(token))
        if token in tokenizer.stop_ids:
            return ids
        assert len(ids) < 3000


@pytest.mark.heavy
@pytest.mark.parametrize("name", FORMATS)
def test_a_grammar_of_calls_lets_nothing_else_through(tokenizer, name):
    speaks, rng, names, counts = language(tokenizer, name), np.random.default_rng(0), set(), set()
    for _ in range(60):
        guide = Grammar(tokenizer.grammar_vocabulary, speaks.grammar(ASKED), tokenizer.stop_ids[0])
        said = speaks.read(drawn(guide, tokenizer, rng), ASKED)
        assert said.calls and not said.malformed and not said.content, said
        for call in said.calls:
            assert json.loads(call.arguments).keys() == ({"path"} if call.name == "look" else set())
        names |= {call.name for call in said.calls}
        counts.add(len(said.calls))
    assert names == {"look", "wait"}
    has_one = name in ("plain_json", "harmony")
    assert (max(counts) > 1) != has_one, "several calls, if the format has them"


def asked_for(**properties):
    schema = {"type": "object", "properties": properties, "required": ["must"]}
    schema["additionalProperties"] = False
    tool = {"type": "function", "function": {"name": "do", "description": "", "parameters": schema}}
    return ChatRequest("m", ASKED.messages, (tool,), REQUIRED)


@pytest.mark.heavy
@pytest.mark.parametrize("name", FORMATS)
def test_the_values_of_calls_are_what_their_schema_says(tokenizer, name):
    asked = asked_for(
        must={"type": "string", "minLength": 2, "maxLength": 6},
        mode={"type": "string", "enum": ["on", "off"]},
        count={"type": "integer", "minimum": 0, "maximum": 20},
        sure={"type": "boolean"},
        parts={"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    )
    speaks, rng, seen = language(tokenizer, name), np.random.default_rng(3), set()
    for _ in range(60):
        guide = Grammar(tokenizer.grammar_vocabulary, speaks.grammar(asked), tokenizer.stop_ids[0])
        for call in speaks.read(drawn(guide, tokenizer, rng), asked).calls:
            arguments = json.loads(call.arguments)
            assert 2 <= len(arguments["must"]) <= 6
            assert arguments.get("mode", "on") in ("on", "off")
            assert arguments.get("count", 0) in range(21)
            assert arguments.get("sure", True) in (True, False)
            assert set(arguments.get("parts", ())) <= {"a", "b"}
            seen |= arguments.keys()
    assert seen == {"must", "mode", "count", "sure", "parts"}


@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": ["must"]},
        {"properties": {"must": True}, "required": 5},
        {"properties": {"must": {"enum": 5}}},
        {"properties": {"must": {"minLength": "0})/ x", "maxLength": -1}}},
        {"properties": {"must": {"type": {"a": 1}}}},
        {"properties": {"must": {"minLength": 5, "maxLength": 2}}},
    ],
)
def test_a_schema_that_is_none_breaks_nothing(tokenizer, parameters):
    tool = {"name": "do", "description": "", "parameters": parameters}
    asked = ChatRequest("m", ASKED.messages, ({"type": "function", "function": tool},), REQUIRED)
    speaks = language(tokenizer, "qwen3_coder")
    with contextlib.suppress(ValueError):  # which the client is told
        guide = Grammar(tokenizer.grammar_vocabulary, speaks.grammar(asked), tokenizer.stop_ids[0])
        assert len(allowed(following(guide, np.zeros(0, np.int32)), tokenizer.vocab_size))
    text = (
        "<tool_call>\n<function=do>\n<parameter=must>\nx\n</parameter>\n</function>\n</tool_call>"
    )
    (call,) = speaks.read(tokenizer.reply_ids(text), asked).calls
    assert json.loads(call.arguments) == {"must": "x"}


def test_what_a_format_has_no_grammar_for_is_refused(tokenizer):
    asked = asked_for(must={"type": "string", "pattern": "^a+$"})
    with pytest.raises(ApiError, match="cannot be made to call a tool"):
        language(tokenizer, "qwen3_coder").grammar(asked)
    assert language(tokenizer, "harmony").grammar(asked)
    bare = train_bpe([{"role": "user", "content": "Read."}] * 10, 300)
    with pytest.raises(ApiError, match="cannot be made to call a tool"):
        language(ChatTokenizer(bare), "harmony").grammar(asked)


def test_a_grammar_goes_on_from_where_it_was(tokenizer):
    """Asked for each token, or after several."""
    text, stop = language(tokenizer, "plain_json").grammar(ASKED), tokenizer.stop_ids[0]
    first = Grammar(tokenizer.grammar_vocabulary, text, stop)
    ids = drawn(first, tokenizer, np.random.default_rng(1))
    again = Grammar(tokenizer.grammar_vocabulary, text, stop)
    half = following(again, ids[: len(ids) // 2])
    assert ids[len(ids) // 2] in allowed(half, tokenizer.vocab_size)
    with pytest.raises(ApiError, match="doesn't satisfy the grammar"):
        Grammar(tokenizer.grammar_vocabulary, text, stop).next(ids[3:6], 1)


def test_a_grammar_that_its_matcher_has_given_up_does_not_end_the_reply(tokenizer):
    """As it does with what is too complex. It then says that it has stopped."""
    text, stop = language(tokenizer, "plain_json").grammar(ASKED), tokenizer.stop_ids[0]
    given_up = Grammar(tokenizer.grammar_vocabulary, text, stop)
    assert not given_up._matcher.consume_token(stop)
    assert given_up._matcher.is_stopped()
    with pytest.raises(ApiError, match="cannot be followed any further"):
        given_up.next(np.zeros(0, np.int32), 4)


def test_a_schema_that_turns_out_too_complex_is_refused_with_the_matchers_reason(tokenizer):
    """Not as a token that the grammar does not allow."""
    kinds = [{"type": "object", "properties": {f"k{n}": {"const": n}}} for n in range(2100)]
    asked = asked_for(must={"anyOf": kinds})
    text, stop = language(tokenizer, "plain_json").grammar(asked), tokenizer.stop_ids[0]
    grammar = Grammar(tokenizer.grammar_vocabulary, text, stop)
    with pytest.raises(ApiError, match="max is 2000") as refused:
        drawn(grammar, tokenizer, np.random.default_rng(0))
    assert refused.value.status == 400


def test_pushes_count_what_was_written():
    bias = LogitsBias(8, 0.5, 1.0, {2: 3.0}, min_tokens=4, stop_ids=(7,))
    bias_V = following(bias, np.array([1, 1, 2])).bias_V
    np.testing.assert_array_equal(bias_V, [0, -2.0, 1.5, 0, 0, 0, 0, -np.inf])
    assert following(bias, np.array([1, 1, 2, 3])).bias_V[7] == 0
    assert bias_V.dtype == np.float32


def test_a_grammar_and_pushes_hold_together(tokenizer):
    text, masks = language(tokenizer, "plain_json").grammar(ASKED), MaskTable()
    grammar = Grammar(tokenizer.grammar_vocabulary, text, tokenizer.stop_ids[0], masks)
    both = GrammarAndBias(grammar, LogitsBias(tokenizer.vocab_size, bias={5: 1.0}))
    (held,) = both.next(np.zeros(0, np.int32), 4)
    assert held.bias_V[5] == 1.0
    (opening,) = tokenizer.reply_ids("{")[:1]
    assert opening in allowed(held, tokenizer.vocab_size)
    assert held.mask_id == masks.number(held.allowed_w), "the learner is told"


@pytest.mark.parametrize(
    ("schema", "text", "ends"),
    [({"enum": [True]}, "true", True), ({"type": "integer"}, "17", False)],
)
def test_a_reply_ends_early_only_where_its_grammar_does(tokenizer, schema, text, ends):
    asked = dataclasses.replace(ASKED, tools=(), tool_choice=AUTO, schema=schema)
    grammar = language(tokenizer, "plain_json").grammar(asked)
    bias = LogitsBias(tokenizer.vocab_size, min_tokens=20, stop_ids=tokenizer.stop_ids)
    both = GrammarAndBias(
        Grammar(tokenizer.grammar_vocabulary, grammar, tokenizer.stop_ids[0]), bias
    )
    ids = tokenizer.reply_ids(text)[:-1]
    for count in range(len(ids) + 1):
        held = following(both, ids[:count])
        possible = [
            token
            for token in allowed(held, tokenizer.vocab_size)
            if np.isfinite(held.bias_V[token])
        ]
        is_end = set(possible) <= set(tokenizer.stop_ids)
        assert possible and is_end == (ends and count == len(ids))


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_forced_is_known_ahead(tokenizer, name):
    """A grammar says the same of the tokens ahead as when it is asked for each of them."""
    text, stop = language(tokenizer, name).grammar(ASKED), tokenizer.stop_ids[0]
    vocabulary, masks = tokenizer.grammar_vocabulary, MaskTable()
    ids = drawn(Grammar(vocabulary, text, stop), tokenizer, np.random.default_rng(2))
    single = Grammar(vocabulary, text, stop, masks)
    one_by_one = [following(single, ids[:t]) for t in range(len(ids))]
    ahead, written, asked = Grammar(vocabulary, text, stop, masks), 0, 0
    while written < len(ids):
        all_held = ahead.next(ids[:written], 4)
        held = [each for each in all_held if not each.is_speculative]
        assert len(ahead.next(ids[:written], 3)) == min(len(all_held), 3)
        for guess in all_held[len(held) :]:
            assert guess == dataclasses.replace(held[-1], is_speculative=True), "what held last"
        for found, expected in zip(held, one_by_one[written:], strict=False):
            np.testing.assert_array_equal(found.allowed_w, expected.allowed_w)
            assert found.mask_id == expected.mask_id
        assert all(each.mask_id == FORCED for each in held[:-1])
        is_end = written + len(held) == len(ids)
        assert len(all_held) == 4 or (is_end and held[-1].mask_id == FORCED)
        written, asked = written + len(held), asked + 1
    assert written == len(ids) and asked < len(ids)


@pytest.mark.parametrize("tokens", [[0], [31], [32], [40], [], [5, 6], [5, 40], [31, 63]])
def test_the_only_token_of_a_mask(tokens):
    allowed_w = np.zeros(2, np.uint32)
    for token in tokens:
        allowed_w[token // 32] |= np.uint32(1 << token % 32)
    allowed_w = allowed_w.view(np.int32)
    assert only_token(allowed_w) == (tokens[0] if len(tokens) == 1 else None)
    assert allows_only(allowed_w, [7, *tokens])
    assert allows_only(allowed_w, tokens[1:]) == (not tokens)
