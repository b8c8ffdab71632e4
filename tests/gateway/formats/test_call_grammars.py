"""What required calls may be, by the tools' schemas, and that each format reads it back."""

import json
import re

import llguidance
import pytest

from ale_jax.gateway.formats.families import FORMATS, format_named
from ale_jax.gateway.formats.grammar import json_grammar
from ale_jax.gateway.formats.harmony import PIECES
from ale_jax.gateway.formats.qwen3_coder import TAGS
from ale_jax.gateway.formats.reply import MARK, UNMARK
from ale_jax.gateway.formats.schemas import MAX_CHARS, MAX_LEVELS, MAX_STEPS, Document
from ale_jax.gateway.formats.unquoted_values import Value
from tests.gateway.formats.test_formats import marked
from tests.rows import each_row

BYTES = llguidance.LLTokenizer("byte")  # ids from 256 on are special
MISTRAL_PIECES = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
# Of two families, each of which has the first ids.
TOKENS = {name: 256 + n for pieces in (PIECES, MISTRAL_PIECES) for n, name in enumerate(pieces)}
END = TAGS.end
GRAMMARS = [name for name in FORMATS if name != "gemma4"]  # whose values are no JSON at all
SPECIAL = re.compile(f"({MARK}[^{UNMARK}]*{UNMARK})")


def allows(grammar, text):
    """Whether the whole text is of the grammar. text: with marked special tokens."""
    matcher = llguidance.LLMatcher(BYTES, llguidance.LLMatcher.grammar_from_lark(grammar))
    assert not matcher.get_error(), matcher.get_error()
    parts = SPECIAL.split(text)
    ids = [
        id
        for part in parts
        for id in ([TOKENS[part[1:-1]]] if part.startswith(MARK) else part.encode())
    ]
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def coder_call(tool, arguments):
    values = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in arguments.items()
    }
    parts = [f"<parameter={name}>\n{value}{END}" for name, value in values.items()]
    return f"<tool_call>\n<function={tool}>\n{''.join(parts)}</function>\n</tool_call>"


def glm_call(tool, arguments):
    parts = [
        f"<arg_key>{name}</arg_key>\n<arg_value>"
        f"{value if isinstance(value, str) else json.dumps(value)}</arg_value>\n"
        for name, value in arguments.items()
    ]
    return f"<tool_call>{tool}\n{''.join(parts)}</tool_call>"


def dsml_call(tool, arguments):
    parts = []
    for name, value in arguments.items():
        is_text = isinstance(value, str)
        head = f'<｜DSML｜parameter name="{name}" string="{json.dumps(is_text)}">'
        text = value if is_text else json.dumps(value)
        parts.append(f"{head}{text}</｜DSML｜parameter>\n")
    inner = f'<｜DSML｜invoke name="{tool}">\n{"".join(parts)}</｜DSML｜invoke>\n'
    return f"<｜DSML｜function_calls>\n{inner}</｜DSML｜function_calls>"


# As models of a format write a call: from a tool and its arguments as JSON.
WRITTEN = {
    "hermes": '<tool_call>\n{{"name": "{0}", "arguments": {1}}}\n</tool_call>',
    "llama3": '{{"name": "{0}", "parameters": {1}}}',
    "mistral": '«[TOOL_CALLS]»[{{"name": "{0}", "arguments": {1}}}]',
    "mistral_v11": "«[TOOL_CALLS]»{0}«[CALL_ID]»a1b2c3d4e«[ARGS]»{1}",
    "mistral_v13": "«[TOOL_CALLS]»{0}«[ARGS]»{1}",
    "harmony": "«<|channel|>»commentary to=functions.{0} «<|constrain|>»json«<|message|>»{1}"
    "«<|call|>»",
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.{0}:12"
    "<|tool_call_argument_begin|>{1}<|tool_call_end|><|tool_calls_section_end|>",
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{0}\n"
    "```json\n{1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{0}<｜tool▁sep｜>{1}"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "plain_json": '{{"name": "{0}", "arguments": {1}}}',
}
UNQUOTED_CALLS = {"qwen3_coder": coder_call, "glm": glm_call, "deepseek_v32": dsml_call}


def call(name, tool, arguments):
    """As models of this format write it."""
    if name in UNQUOTED_CALLS:
        return UNQUOTED_CALLS[name](tool, arguments)
    return marked(WRITTEN[name].format(tool, json.dumps(arguments)))


def tool(properties, **more):
    return {"type": "object", "properties": properties, "additionalProperties": False, **more}


NUMBER, WORD = {"type": "integer"}, {"enum": ["on", "off"]}
CHAIN = tool({"n": {"$ref": "#/$defs/N"}, "next": {"$ref": "#/$defs/Chain"}}, required=["n"])
CHAINS = {"Chain": CHAIN, "N": NUMBER}
PAIR, PLACE = {"type": "array"}, "#/properties/pair/prefixItems"
# A draft that has no `dependentRequired`, which llguidance refuses in later ones.
DRAFT_7 = {"$schema": "http:" + "//json-schema." + "org/draft-07/schema#", "dependentRequired": {}}


@pytest.mark.parametrize("name", GRAMMARS)
@each_row(
    "parameters, allowed, refused",
    [
        (
            tool({"chain": {"$ref": "#/$defs/Chain"}}, **{"$defs": CHAINS}),
            {"chain": {"n": 1, "next": {"n": 2, "next": {"n": 3}}}},
            {"chain": {"n": 1, "next": {"n": "2"}}},
        ),
        (
            {"$ref": "#/$defs/Chain", "$defs": CHAINS},
            {"n": 1, "next": {"n": 2}},
            {"n": 1, "next": {"next": 2}},
        ),
        (
            tool({"n": {"$ref": "#/definitions/N"}}, definitions={"N": NUMBER}, **DRAFT_7),
            {"n": 1},
            {"n": "one"},
        ),
        (
            tool(
                {"a": {"$ref": "#/$defs/A~1~0B"}, "b": {"$ref": "#/%24defs/%C3%A9"}},
                **{"$defs": {"A/~B": NUMBER, "é": NUMBER}},
            ),
            {"a": 1, "b": 2},
            {"a": 1, "b": True},
        ),
        (
            tool({"n": NUMBER, "again": {"$ref": "#"}, "as_n": {"$ref": "#/properties/n"}}),
            {"n": 1, "again": {"again": {"as_n": 2}}, "as_n": 3},
            {"n": 1, "again": {"again": {"as_n": "2"}}},
        ),
        (
            tool({"pair": {**PAIR, "prefixItems": [NUMBER, {"$ref": f"{PLACE}/0"}]}}),
            {"pair": [1, 2]},
            {"pair": [1, "2"]},
        ),
        (
            tool({"$ref": NUMBER, "id": NUMBER, "like": {"const": {"$ref": "#/nowhere"}}}),
            {"$ref": 1, "id": 2, "like": {"$ref": "#/nowhere"}},
            {"$ref": 1, "id": 2, "like": {"$ref": "#/elsewhere"}},
        ),
        (
            tool({"a": {"$id": "a.json", "allOf": [{"$ref": "#/$defs/N"}]}}, **{"$defs": CHAINS}),
            {"a": 1},
            {"a": True},
        ),
    ],
)
def test_references_lead_within_their_tools_schema(name, parameters, allowed, refused):
    grammar = format_named(name).call_grammar({"do": parameters}, TOKENS, False)
    assert not allows(grammar, call(name, "do", refused))
    text = call(name, "do", allowed)
    assert allows(grammar, text)
    (found,) = format_named(name).parse(text, {"do": parameters}).calls
    assert (found.name, json.loads(found.arguments)) == ("do", allowed)


@pytest.mark.parametrize("name", GRAMMARS)
def test_tools_may_give_different_definitions_the_same_name(name):
    reference = tool({"x": {"$ref": "#/$defs/X"}}, required=["x"])
    tools = {
        "count": {**reference, "$defs": {"X": NUMBER}},
        "turn": {**reference, "$defs": {"X": {"type": "boolean"}}},
    }
    grammar = format_named(name).call_grammar(tools, TOKENS, False)
    calls = [("count", 1), ("count", True), ("turn", 1), ("turn", True)]
    found = [allows(grammar, call(name, each, {"x": value})) for each, value in calls]
    assert found == [True, False, False, True]


@each_row(
    "schema, text",
    [
        ({"$ref": "#/$defs/X"}, "leads nowhere: '#/$defs/X'"),
        ({"$ref": "#/required/1"}, "leads nowhere: '#/required/1'"),
        ({"$ref": "file:///x.json#/y"}, "must be a pointer within its schema: 'file:///x.json#/y'"),
        ({"$ref": "#name"}, "must be a pointer within its schema: '#name'"),
    ],
)
def test_a_reference_that_leads_nowhere_is_named(schema, text):
    parameters = tool({"x": schema}, required=["x"])
    for name in GRAMMARS:
        with pytest.raises(ValueError, match=re.escape(text)):
            format_named(name).call_grammar({"do": parameters}, TOKENS, False)
    with pytest.raises(ValueError, match=re.escape(text)):
        json_grammar(parameters)


def chain_of(links):
    """Definitions of which each refers to the next, and the schema that refers to the first."""
    definitions = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(links - 1)}
    return tool(
        {"x": {"$ref": "#/$defs/d0"}},
        **{"$defs": {**definitions, f"d{links - 1}": NUMBER}},
    )


def test_references_that_would_end_the_compilers_stack_are_refused():
    """llguidance 1.9.1 ends the process with 3000 links. A tool's body and its arguments lie around
    the property, and the schema around it."""
    assert allows(json_grammar(chain_of(MAX_LEVELS - 2)), '{"x": 1}')
    with pytest.raises(ValueError, match=f"{MAX_LEVELS} deep"):
        json_grammar(chain_of(MAX_LEVELS - 1))
    for name in set(GRAMMARS) - UNQUOTED_CALLS.keys():
        with pytest.raises(ValueError, match=f"{MAX_LEVELS} deep"):
            format_named(name).call_grammar({"do": chain_of(MAX_LEVELS)}, TOKENS, False)
    assert format_named("qwen3_coder").call_grammar({"do": chain_of(64)}, TOKENS, False)
    with pytest.raises(ValueError, match="64 deep"):
        format_named("qwen3_coder").call_grammar({"do": chain_of(65)}, TOKENS, False)


TWO = {"anyOf": [NUMBER, {"type": "string"}]}
DOUBLED = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(30)}


@each_row(
    "parameters, text",
    [
        # 200 values of 40 000 letters are 8 million.
        (
            tool(
                {f"p{n}": {"$ref": "#/$defs/Long"} for n in range(200)},
                **{"$defs": {"Long": {"enum": ["x" * 40_000]}}},
            ),
            f"may have {MAX_CHARS} letters",
        ),
        # 2 ** 40 options, and an option of 2 ** 30 schemas.
        (tool({"x": {"allOf": [TWO] * 40}}), "too many choices"),
        (
            tool({"x": {"$ref": "#/$defs/d0"}}, **{"$defs": {**DOUBLED, "d30": NUMBER}}),
            "too many choices",
        ),
        # 100 lists of 1000 values.
        (tool({"x": {"anyOf": [{"enum": ["a"] * 1000}] * 100}}), "too many choices"),
    ],
)
def test_the_work_on_a_hostile_schema_is_bounded(parameters, text):
    assert MAX_CHARS < 8_000_000 and MAX_STEPS < 100_000
    with pytest.raises(ValueError, match=text):
        format_named("qwen3_coder").call_grammar({"do": parameters}, TOKENS, False)
    # What the reader does not understand is a text.
    text = coder_call("do", {"x": 5})
    (found,) = format_named("qwen3_coder").parse(text, {"do": parameters}).calls
    assert json.loads(found.arguments) == {"x": "5"}


SHORT = {"type": "string", "maxLength": 5}
NULL, LIST = {"type": "null"}, {"type": "array", "items": NUMBER}
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
CHAIN_REF = {"$ref": "#/$defs/Chain"}


@each_row(
    "schema, allowed, refused",
    [
        (NUMBER, {"5": 5}, ["x", "null", '"5"']),
        ({"anyOf": [NUMBER, NULL]}, {"5": 5, "null": None}, ["x", "5.5", ""]),
        ({"anyOf": [LIST, NULL]}, {"[1, 2]": [1, 2], "null": None}, ["[x]", "1"]),
        ({"oneOf": [NUMBER, {"type": "boolean"}]}, {"5": 5, "true": True}, ["null", "yes"]),
        ({"allOf": [{"$ref": "#/$defs/N"}], "default": 1}, {"5": 5}, ["x"]),
        (CHAIN_REF, {'{"n": 1}': {"n": 1}}, ["x", '{"n": "1"}']),
        ({"enum": [1, 2]}, {"1": 1}, ["3", "x"]),
        ({"const": 7}, {"7": 7}, ["8", "x"]),
        # A string, and null.
        (
            {"anyOf": [SHORT, NULL]},
            {"x": "x", "": "", "5": "5", "null": None, "nulls": "nulls", '"a"': '"a"'},
            ["longer"],
        ),
        (
            {"type": ["string", "null"], "minLength": 5},
            {"null": None, "nulls": "nulls"},
            ["void", " null"],
        ),
        ({"anyOf": [WORD, NULL]}, {"on": "on", "null": None}, ["onn", '"on"']),
        ({"anyOf": [{"$ref": "#/$defs/Word"}, NULL]}, {"off": "off", "null": None}, ["x"]),
        # A string, and something else: what looks like it is read as it.
        ({"anyOf": [SHORT, NUMBER]}, {"x": "x", "5": 5, "5.5": "5.5", "5 x": "5 x"}, ["longer"]),
        ({"anyOf": [SHORT, DIGIT]}, {"x": "x", "5": 5}, ["55", " 55", "-1", "longer"]),
        ({"anyOf": [SHORT, LIST]}, {"x [1]": "x [1]", "[1, 2, 3]": [1, 2, 3]}, ['["1"]', " [x]"]),
        (
            {"anyOf": [SHORT, CHAIN_REF, {"type": "boolean"}]},
            {'{"n": 1}': {"n": 1}, "x": "x", "true": True, "truer": "truer"},
            ["{}", "true ", '{"n": "1"}'],
        ),
        ({"anyOf": [SHORT, {"const": True}]}, {"true": True, "x": "x"}, ["false"]),
        ({"anyOf": [SHORT, {"const": 5}]}, {"5": 5, "x": "x"}, ["6"]),
        ({"enum": ["x", "1", 2, None]}, {"x": "x", "2": 2, "null": None}, ["1", "y"]),
        ({"enum": ["x", 1], "type": "string"}, {"x": "x"}, ["1"]),
        ({"enum": ["x", "longest"], "maxLength": 5}, {"x": "x"}, ["longest"]),
        # Two kinds of strings.
        ({"anyOf": [SHORT, {"const": "longest"}]}, {"x": "x", "longest": "longest"}, ["longer"]),
        ({"allOf": [SHORT, {"minLength": 2}]}, {"xx": "xx", "55": "55"}, ["x", "longer"]),
        # Not known to be anything: a string.
        ({}, {"x": "x", "5": "5", "null": "null"}, []),
        ({"anyOf": [{}, NULL]}, {"x": "x", "5": "5", "null": None}, []),
    ],
)
def test_a_value_of_qwen3_coder_is_read_as_its_grammar_allows(schema, allowed, refused):
    definitions = {"$defs": {**CHAINS, "Word": WORD}}
    value = Value(schema, Document({"properties": {"x": schema}, **definitions}))
    grammar = "\n".join(["start: value", *value.rules("value", END)])
    for text, expected in allowed.items():
        found = value.read(text)
        assert (type(found), found) == (type(expected), expected)
        assert allows(grammar, text + END), text
    for text in refused:
        assert not allows(grammar, text + END), text


@each_row(
    "schema, text, expected",
    [
        ({"anyOf": [NUMBER, NULL]}, "soon", "soon"),
        ({"anyOf": [LIST, NULL]}, "\n[1, 2] ", [1, 2]),
        ({"anyOf": [SHORT, LIST]}, " [1, 2]", [1, 2]),
        ({"anyOf": [SHORT, LIST]}, "[1, 2", "[1, 2"),
        ({"type": ["string", "number"]}, "5.0", 5.0),
        ({"type": ["string", "integer"]}, "true", "true"),
    ],
)
def test_what_no_grammar_holds_is_read_as_what_it_may_be(schema, text, expected):
    found = Value(schema, Document(schema)).read(text)
    assert (type(found), found) == (type(expected), expected)


@each_row(
    "schema",
    [
        {"type": "string", "pattern": "^a+$"},
        {"anyOf": [{"type": "string", "format": "date"}, NULL]},
        {"anyOf": [NUMBER, {"$ref": "#/$defs/Pattern"}]},
    ],
)
def test_texts_that_must_match_a_pattern_have_no_grammar(schema):
    parameters = tool({"x": schema}, **{"$defs": {"Pattern": {"type": "string", "pattern": "a"}}})
    assert format_named("qwen3_coder").call_grammar({"do": parameters}, TOKENS, False) is None


def test_properties_of_schemas_that_hold_together_are_all_parameters():
    base = tool({"a": NUMBER}, required=["a"])
    own = {"properties": {"a": {"maximum": 3}, "b": NUMBER}, "required": ["b"]}
    parameters = {"allOf": [{"$ref": "#/$defs/Base"}, own], "$defs": {"Base": base}}
    grammar = format_named("qwen3_coder").call_grammar({"do": parameters}, TOKENS, False)
    for arguments, is_allowed in (
        ({"a": 1, "b": 2}, True),
        ({"a": 4, "b": 2}, False),
        ({"a": 1}, False),
    ):
        assert allows(grammar, coder_call("do", arguments)) == is_allowed
