"""Tool calls of each family, as its models write them, and what is no call."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ale_jax.gateway.formats.families import FORMATS, format_named, format_of
from ale_jax.gateway.formats.reply import MARK, UNMARK, plain_text, sendable, special

TOOLS = {
    "bash": {"properties": {"command": {"type": "string"}, "seconds": {"type": "integer"}}},
    "note": {"properties": {"tags": {"type": "array"}, "text": {"type": ["string", "null"]}}},
}
LS = ("bash", {"command": "ls"})
BOB = '{"name": "Bob", "age": 3}'
ECHO = ("bash", {"command": 'echo "é"\n</x> {1}'})


def marked(text):
    """«name» stands for a special token."""
    return text.replace("«", MARK).replace("»", UNMARK)


def parse(name, text, tools=TOOLS):
    found = format_named(name).parse(marked(text), tools)
    calls = [(call.name, json.loads(call.arguments)) for call in found.calls]
    return found.content, found.reasoning, calls, found.malformed


HERMES = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
HERMES_ECHO = f"<tool_call>{json.dumps({'name': ECHO[0], 'arguments': ECHO[1]})}</tool_call>"
CODER = (
    "<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>"
)
HARMONY = (
    '«<|channel|>»commentary to=functions.bash «<|constrain|>»json«<|message|>»{"command": '
    '"ls"}«<|call|>»'
)
GLM = "<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>ls</arg_value>\n</tool_call>"
KIMI_CALL = (
    "<|tool_call_begin|>functions.bash:0<|tool_call_argument_begin|>"
    '{"command": "ls"}<|tool_call_end|>'
)
KIMI = f"<|tool_calls_section_begin|>{KIMI_CALL}<|tool_calls_section_end|>"
V3_CALL = (
    '<｜tool▁call▁begin｜>function<｜tool▁sep｜>bash\n```json\n{"command": "ls"}\n```'
    "<｜tool▁call▁end｜>"
)
V3 = f"<｜tool▁calls▁begin｜>{V3_CALL}<｜tool▁calls▁end｜>"
V31_CALL = '<｜tool▁call▁begin｜>bash<｜tool▁sep｜>{"command": "ls"}<｜tool▁call▁end｜>'
V31 = f"<｜tool▁calls▁begin｜>{V31_CALL}<｜tool▁calls▁end｜>"
V32_CALL = (
    '<｜DSML｜invoke name="bash">\n<｜DSML｜parameter name="command" string="true">ls'
    "</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
)
V32 = f"<｜DSML｜function_calls>\n{V32_CALL}</｜DSML｜function_calls>"
GEMMA = 'call:bash{command:<|"|>ls<|"|>}'


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("hermes", "Hello.", ("Hello.", "", [], 0)),
        ("hermes", HERMES, ("", "", [LS], 0)),
        ("hermes", f"I look.\n{HERMES}\n{HERMES_ECHO}", ("I look.", "", [LS, ECHO], 0)),
        ("hermes", f"<think>\nhm\n</think>\n\n{HERMES}", ("", "hm", [LS], 0)),
        ("hermes", f"hm </think> Yes. {HERMES}", ("hm </think> Yes.", "", [LS], 0)),
        ("hermes", f"<think>{HERMES}", ("", HERMES, [], 0)),
        ("qwen3_coder", f"I look.\n{CODER}", ("I look.", "", [LS], 0)),
        (
            "qwen3_coder",
            "<tool_call><function=note><parameter=tags>[1, 2]</parameter><parameter=text>\n7\n"
            "</parameter></function></tool_call>",
            ("", "", [("note", {"tags": [1, 2], "text": "7"})], 0),
        ),
        (
            "qwen3_coder",
            "<tool_call><function=note><parameter=text>null</parameter><parameter=tag>null"
            "</parameter></function></tool_call>",
            ("", "", [("note", {"text": None, "tag": "null"})], 0),
        ),
        (
            "qwen3_coder",
            "<tool_call><function=bash><parameter=seconds>soon</parameter></function></tool_call>",
            ("", "", [("bash", {"seconds": "soon"})], 0),
        ),
        ("llama3", '{"name": "bash", "parameters": {"command": "ls"}}', ("", "", [LS], 0)),
        (
            "llama3",
            'So:«<|python_tag|>»{"name": "bash", "parameters": {"command": "ls"}}; {"name": '
            '"bash", "arguments": {"command": "ls"}}',
            ("So:", "", [LS, LS], 0),
        ),
        ("llama3", "The set {1, 2} is small.", ("The set {1, 2} is small.", "", [], 0)),
        ("llama3", BOB, (BOB, "", [], 0)),
        ("llama3", BOB + " is his.", (BOB + " is his.", "", [], 0)),
        ("llama3", '{"name": ["bash"]}', ('{"name": ["bash"]}', "", [], 0)),
        ("llama3", '«<|python_tag|>»{"name": "Bob"}', ("", "", [("Bob", {})], 0)),
        (
            "mistral",
            '«[TOOL_CALLS]»[{"name": "bash", "arguments": {"command": "ls"}, "id": "a1b2c3d4e"}]',
            ("", "", [LS], 0),
        ),
        (
            "mistral",
            'So: «[TOOL_CALLS]»bash«[ARGS]»{"command": "ls"}«[TOOL_CALLS]»bash«[CALL_ID]»'
            'x1«[ARGS]»{"command": "ls"}',
            ("So:", "", [LS, LS], 0),
        ),
        (
            "harmony",
            "«<|channel|>»analysis«<|message|>»hm«<|end|>»«<|start|>»assistant" + HARMONY,
            ("", "hm", [LS], 0),
        ),
        ("harmony", "«<|channel|>»final«<|message|>»Done.«<|return|>»", ("Done.", "", [], 0)),
        (
            "harmony",
            "«<|channel|>»commentary«<|message|>»I look.«<|end|>»«<|start|>»assistant"
            ' to=functions.bash«<|channel|>»commentary json«<|message|>»{"command": "ls"}',
            ("I look.", "", [LS], 0),
        ),
        (
            "mistral_v13",
            '«[THINK]»hm«[/THINK]»So:«[TOOL_CALLS]»bash«[ARGS]»{"command": "ls"}',
            ("So:", "hm", [LS], 0),
        ),
        ("glm", f"\n<think>hm</think>\nI look.\n{GLM}\n{GLM}", ("I look.", "hm", [LS, LS], 0)),
        (
            "glm",
            "<tool_call>note<arg_key>tags</arg_key><arg_value>[1, 2]</arg_value><arg_key>text"
            "</arg_key><arg_value>7\n</tool_call></arg_value></tool_call>",
            ("", "", [("note", {"tags": [1, 2], "text": "7\n</tool_call>"})], 0),
        ),
        ("glm", "<tool_call>stop\n</tool_call>", ("", "", [("stop", {})], 0)),
        ("kimi", f"<think>hm</think>I look.{KIMI}", ("I look.", "hm", [LS], 0)),
        ("kimi", f"{KIMI.replace('<|tool_calls_section_end|>', '')}", ("", "", [LS], 0)),
        ("deepseek_v3", f"I look.{V3}", ("I look.", "", [LS], 0)),
        ("deepseek_v3", V3.replace(V3_CALL, f"{V3_CALL}\n{V3_CALL}"), ("", "", [LS, LS], 0)),
        ("deepseek_v31", f"<think>hm</think>So:{V31}", ("So:", "hm", [LS], 0)),
        ("deepseek_v31", V31.replace(V31_CALL, V31_CALL * 2), ("", "", [LS, LS], 0)),
        ("deepseek_v32", f"<think>hm</think>So:\n\n{V32}", ("So:", "hm", [LS], 0)),
        (
            "deepseek_v32",
            V32.replace('string="true">ls', 'string="false">[1, "a"]') + "\n" + V32,
            ("", "", [("bash", {"command": [1, "a"]}), LS], 0),
        ),
        (
            "gemma4",
            f"«<|channel>»thought\nhm«<channel|>»So:«<|tool_call>»{GEMMA}«<tool_call|>»",
            ("So:", "hm", [LS], 0),
        ),
        (
            "gemma4",
            '<|tool_call>call:note{text:null,n:-1.5,in:{a:true, <|"|>b c<|"|>:[]},tags:[1,<|"|>}'
            '<|"|>]}<tool_call|>',
            (
                "",
                "",
                [
                    (
                        "note",
                        {"text": None, "n": -1.5, "in": {"a": True, "b c": []}, "tags": [1, "}"]},
                    )
                ],
                0,
            ),
        ),
        (
            "plain_json",
            'I look.\n```json\n{"name": "bash", "arguments": {"command": "ls"}}\n```',
            ("I look.", "", [LS], 0),
        ),
        (
            "plain_json",
            '{"name": "Bo", "arguments": {}}',
            ('{"name": "Bo", "arguments": {}}', "", [], 0),
        ),
    ],
)
def test_what_models_write_is_read(name, text, expected):
    assert parse(name, text) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"name": "bash", "arguments": {"command": "ls"}'),
        ("hermes", '<tool_call>{"name": "bash", "arguments": {}} and</tool_call>'),
        ("hermes", '<tool_call>{"name": "bash", "arguments": {"a": 1, "a": 2}}</tool_call>'),
        ("hermes", '<tool_call>{"name": 7, "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "bash", "arguments": [1]}</tool_call>'),
        ("hermes", "<tool_call>" + "[" * 100_000 + "</tool_call>"),
        ("hermes", "<tool_call>" + "9" * 10_000 + "</tool_call>"),
        *(
            ("hermes", f'<tool_call>{{"name": "bash", "arguments": {{"a": {value}}}}}</tool_call>')
            for value in ('"\\ud800"', "NaN", "-Infinity", "1e999", "[" * 300 + "]" * 300)
        ),
        ("llama3", '{"name": "\\udfff", "parameters": {}}'),
        ("mistral", '«[TOOL_CALLS]»bash«[ARGS]»{"\\ud800": 1}'),
        ("qwen3_coder", "<tool_call><function=bash>ls</function></tool_call>"),
        (
            "qwen3_coder",
            "<tool_call><function=bash><parameter=a>1</parameter><parameter=a>2</parameter>"
            "</function></tool_call>",
        ),
        ("llama3", '{"name": "bash", "parameters": {"command": "ls"}} and'),
        ("llama3", "«<|python_tag|>»print(1)"),
        ("llama3", '{"name": "bash", "parameters": {}}; ' + BOB),
        ("mistral", "«[TOOL_CALLS]»[7]"),
        ("mistral", "«[TOOL_CALLS]»bash«[ARGS]»ls"),
        ("harmony", HARMONY.replace("}", "")),
        ("glm", "<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>ls"),
        ("glm", "<tool_call>bash ls</tool_call>"),
        ("glm", GLM.replace("</tool_call>", "<arg_key>a</arg_key></tool_call>")),
        ("glm", "<tool_call>" + "<arg_key>a</arg_key><arg_value>b" * 3000),
        ("kimi", KIMI.replace("functions.bash:0", "bash")),
        ("kimi", KIMI.replace("}", "")),
        ("kimi", KIMI.replace("<|tool_calls_section_end|>", "and")),
        ("kimi", KIMI.replace("<|tool_call_begin|>", KIMI_CALL + "<|tool_call_begin|>")),
        ("deepseek_v3", V3.replace("```json", "")),
        ("deepseek_v3", V3.replace("\n```<", "<")),
        ("deepseek_v31", V31.replace("bash", "")),
        ("deepseek_v31", "<｜tool▁calls▁begin｜>" + "<｜tool▁call▁begin｜>" * 3000),
        ("deepseek_v32", V32.replace('"true">ls', '"false">ls')),
        ("deepseek_v32", V32.replace("</｜DSML｜invoke>", "")),
        ("deepseek_v32", V32.replace(">ls<", ">ls</｜DSML｜parameter>x<")),
        ("gemma4", '<|tool_call>call:bash{command:<|"|>ls}<tool_call|>'),
        ("gemma4", "<|tool_call>call:bash{command:ls}<tool_call|>"),
        ("gemma4", "<|tool_call>call:bash{a:1,a:2}<tool_call|>"),
        ("gemma4", "<|tool_call>call:bash{a:1-2}<tool_call|>"),
        ("gemma4", "<|tool_call>call:bash{a:" + "[" * 100_000),
    ],
)
def test_a_call_that_cannot_be_read_stays_in_the_content(name, text):
    content, _, calls, malformed = parse(name, text)
    assert (calls, malformed) == ([], 1)
    assert content


@pytest.mark.parametrize("name", ["llama3", "plain_json"])
@pytest.mark.parametrize(
    "text", [BOB, '{"name": "bash", "parameters": {"command": "ls"}}', '{"a": ']
)
def test_without_tools_json_is_an_answer(name, text):
    assert parse(name, text, tools={}) == (text.strip(), "", [], 0)


def test_special_tokens_in_letters_are_text():
    for name, text in (
        ("mistral", '[TOOL_CALLS][{"name": "bash", "arguments": {}}]'),
        ("harmony", HARMONY.replace("«", "").replace("»", "")),
    ):
        assert parse(name, text) == (text, "", [], 0)
    assert (
        format_named("mistral").parse(plain_text(f"{MARK}[TOOL_CALLS]{UNMARK}[]"), TOOLS).calls
        == ()
    )


def test_arguments_may_be_json_within_json():
    inner = json.dumps('{"command": "ls"}')
    text = f'<tool_call>{{"name": "bash", "arguments": {inner}}}</tool_call>'
    assert parse("hermes", text) == ("", "", [LS], 0)


PIECES = (
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<function=bash>", "</function>"),
    *('{"name": "bash", "arguments": {}}', "{", "}", "[", "]", "a", "bash", "\n", "\ud800"),
    *("«<|channel|>»", "«<|message|>»", "«<|call|>»", "«[TOOL_CALLS]»", "«[ARGS]»"),
    *("«[THINK]»", "«[/THINK]»", "<|channel>thought\n", "<channel|>", GEMMA),
    *("<|tool_call>", "<tool_call|>", "call:bash{", GLM, "<arg_key>", "</arg_key>", "<arg_value>"),
    *(KIMI, "<|tool_calls_section_begin|>", V3, V31, "<｜tool▁calls▁begin｜>", V32, V32_CALL),
)


@pytest.mark.parametrize("name", FORMATS)
@settings(deadline=None)
@given(text=st.lists(st.sampled_from(PIECES)).map("".join))
def test_whatever_a_policy_writes_is_read_to_the_end(name, text):
    content, reasoning, _, _ = parse(name, text)
    assert MARK not in content + reasoning and UNMARK not in content + reasoning


def test_only_what_is_content_for_sure_is_sent_early():
    markers = ("<tool_call>", special("<|call|>"))
    for text, sure in (
        ("Hello", "Hello"),
        ("Hello <", "Hello "),
        ("Hello <tool_ca", "Hello "),
        ("1 < 2 ", "1 < 2 "),
        ("So: <tool_call>{", "So: "),
        (f"So: {MARK}", "So: "),
    ):
        assert text[: sendable(text, markers)] == sure


def test_of_a_long_marker_only_as_much_is_compared_as_there_is_text():
    compared = []

    class Marker(str):
        def __getitem__(self, part):
            compared.append(part)
            return super().__getitem__(part)

    assert sendable("so xxx", [Marker("x" * 1000)]) == 3
    assert len(compared) <= len("so xxx")


@pytest.mark.parametrize(
    ("template", "tokens", "name"),
    [
        ("...<tool_call>...", [], "hermes"),
        ("<|im_start|>", ["<tool_call>", "</tool_call>"], "hermes"),
        ("...<tool_call>\n<function=...", [], "qwen3_coder"),
        ("[TOOL_CALLS] [", ["[TOOL_CALLS]"], "mistral"),
        ('message.role == "ipython" ... "parameters": ', ["<|python_tag|>"], "llama3"),
        ("[TOOL_CALLS]name[ARGS]", ["[TOOL_CALLS]", "[ARGS]"], "mistral_v13"),
        ("[TOOL_CALLS]name[CALL_ID]id[ARGS]", ["[TOOL_CALLS]"], "mistral_v11"),
        ("", ["<|channel|>"], "harmony"),
        ("<tool_call>{name}<arg_key>", ["<tool_call>"], "glm"),
        ("<|im_system|>", ["<|tool_calls_section_begin|>"], "kimi"),
        ("'<｜tool▁calls▁begin｜>' ... '```json'", [], "deepseek_v3"),
        ("'<｜tool▁calls▁begin｜>' + tool.name", [], "deepseek_v31"),
        ("<｜User｜>", ["｜DSML｜"], "deepseek_v32"),
        ("<|turn>", ["<|tool_call>"], "gemma4"),
        ("<|im_start|>", [], "plain_json"),
    ],
)
def test_the_template_says_which_format_it_teaches(template, tokens, name):
    assert format_of(template, tokens) == name


def test_a_format_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match="choose one of hermes, qwen3_coder"):
        format_named("hermse")
