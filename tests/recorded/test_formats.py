"""Records in the formats of others, and what is said of those that cannot be read."""

import copy
import json

import pytest

from ale_jax.config.recorded import RecordedData
from ale_jax.gateway.messages import ToolCall
from ale_jax.recorded.files import read_all
from ale_jax.recorded.formats import conversation_of, read_record
from ale_jax.recorded.messages import CALL_ID
from ale_jax.worlds.replies import Call, write_reply
from tests.recorded.made import SYSTEM, TOOLS, USER, WITH_TOOLS, call, said, write

EPISODE = {
    "world": "shell",
    "family": "sort",
    "item": 3,
    "sample": 1,
    "status": "finished",
    "reward": 1.0,
    "rewards": {},
    "solved": True,
    "turns": 1,
    "policy_tokens": 4,
    "truncated": False,
    "seconds": 0.5,
    "metadata": {},
    "messages": [
        SYSTEM,
        {"role": "assistant", "content": "<tool_call>"},
        {"role": "tool", "content": "7"},
    ],
}


def test_messages_with_tools_are_read_as_the_gateway_reads_them():
    read = conversation_of(WITH_TOOLS)
    assert [message.role[0] for message in read.messages] == list("suatattattau")
    assert read.messages[4].tool_calls[0] == ToolCall("bash", '{"command": "cat a.txt"}', "b")
    assert read.messages[6].answers == "c"
    assert read.failed == (True, False, False, False)
    assert (read.learned, read.reward, read.as_written) == ((True,) * 4, 0.5, False)
    assert [tool["function"]["name"] for tool in read.tools] == ["bash", "look"]


def test_what_tables_write_otherwise_means_the_same():
    """Arguments as objects, tools as JSON, nulls, and results whose calls have no ids."""
    other = copy.deepcopy(WITH_TOOLS)
    for message in other["messages"]:
        message["name"] = None
        message.pop("tool_call_id", None)
        for each in message.get("tool_calls") or ():
            del each["id"]
            each["function"]["arguments"] = json.loads(each["function"]["arguments"])
    read = conversation_of(other | {"tools": json.dumps(other["tools"])})
    expected = conversation_of(WITH_TOOLS)
    assert read.tools == expected.tools
    assert [m.content for m in read.messages] == [m.content for m in expected.messages]
    assert read.messages[4].tool_calls[0].arguments == '{"command": "cat a.txt"}'
    assert {m.answers for m in read.messages if m.role == "tool"} == {CALL_ID}


def test_a_weight_of_0_takes_a_reply_out_of_the_loss():
    told = [USER, said("no", weight=0), USER, said("yes", weight=1)]
    assert conversation_of({"messages": told}).learned == (False, True)


def test_sharegpt_with_calls_and_results():
    turns = [
        {"from": "human", "value": "count"},
        {"from": "function_call", "value": '{"name": "look", "arguments": {"command": "a"}}'},
        {"from": "observation", "value": "7"},
        {"from": "gpt", "value": "<tool_call>\n{}\n</tool_call>"},
        {"from": "tool", "value": "<tool_response>\n8\n</tool_response>"},
        {"from": "gpt", "value": "8"},
    ]
    read = conversation_of({"conversations": turns, "system": "be brief"})
    assert [message.role[0] for message in read.messages] == list("suatata")
    assert read.messages[2].tool_calls == (ToolCall("look", '{"command": "a"}'),)
    assert [m.content for m in read.messages if m.role == "tool"] == ["7", "8"]


def test_episodes_are_told_in_the_words_of_the_policy():
    read = conversation_of(EPISODE)
    assert (read.item, read.reward, read.as_written) == (("shell", "sort", 3), 1.0, True)
    assert read.messages[1].content == "<tool_call>" and read.messages[2].answers == CALL_ID


def changed(record, number, **fields):
    messages = [dict(message) for message in record["messages"]]
    messages[number] |= fields
    return record | {"messages": messages}


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (changed(WITH_TOOLS, 1, role="robot"), r"messages\.1\.role: .*'robot'"),
        (changed(WITH_TOOLS, 1, content=None), r"messages\.1\.content: content is missing"),
        (changed(WITH_TOOLS, 3, tool_call_id=""), r"messages\.3\.tool_call_id"),
        (changed(WITH_TOOLS, 3, is_error="yes"), r"messages\.3\.is_error: 'yes'"),
        (changed(WITH_TOOLS, 2, weight=0.5), r"messages\.2\.weight: 0\.5"),
        (changed(WITH_TOOLS, 2, tool_calls=[{"id": "a"}]), r"messages\.2\.tool_calls"),
        (changed(WITH_TOOLS, 2, tool_calls=3), r"messages\.2\.tool_calls: .*list"),
        ({"messages": ["hello"]}, r"messages\.0: "),
        ({"messages": []}, r"messages: \[\] is no list of messages"),
        (WITH_TOOLS | {"tools": [{"type": "function"}]}, r"tools\.0\.function: .*missing"),
        (WITH_TOOLS | {"tools": "{"}, r"tools: no JSON"),
        (WITH_TOOLS | {"reward": "high"}, r"reward: 'high' is no number"),
        ({"conversations": [{"from": "bot", "value": "a"}]}, r"conversations\.0\.from: 'bot'"),
        ({"conversations": [{"from": "gpt"}]}, r"conversations\.0\.value: None"),
        ({"conversations": [{"from": "function_call", "value": "x"}]}, r"conversations\.0\.value"),
        (EPISODE | {"seconds": -1}, r"not an episode: seconds is -1"),
        (EPISODE | {"messages": []}, r"messages: the episode has none"),
        ({k: v for k, v in EPISODE.items() if k != "status"}, r"not an episode: .*status"),
        ({"prompt": "a"}, r"messages, conversations.*: none of these fields .*prompt"),
    ],
)
def test_what_cannot_be_read_is_one_line_with_file_line_and_field(tmp_path, record, field):
    file = write(tmp_path / "bad.jsonl", WITH_TOOLS, record)
    data = RecordedData(name="bad", files="*.jsonl")
    with pytest.raises(ValueError, match=f"^{file}, line 2: {field}") as refused:
        list(read_all(data, str(tmp_path), read_record))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"messages": [', r"a\.jsonl, line 1: "),
        ("a.jsonl", "\n\n[3]\n", r"a\.jsonl, line 3: \[3\] is no object"),
        ("a.json", '[{"messages": []}]', r"a\.json, record 1: messages: "),
        ("a.json", "{", r"a\.json: damaged"),
        ("a.txt", "", r"warm_start\.data bad: there is no file '.*\*\.js\*'"),
    ],
)
def test_damaged_files_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        list(read_all(RecordedData(name="bad", files="*.js*"), str(tmp_path), read_record))


def test_a_file_may_be_one_record_or_a_list_of_them(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(WITH_TOOLS))
    (tmp_path / "b.json").write_text(json.dumps([WITH_TOOLS, {"messages": [USER, said("a")]}]))
    found = list(read_all(RecordedData(name="x", files="*.json"), str(tmp_path), read_record))
    assert [len(each.messages) for _, each in found] == [12, 12, 2]


def test_parquet_is_read(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    told = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    parquet.write_table(pyarrow.table({"messages": [told, told]}), tmp_path / "a.parquet")
    found = list(read_all(RecordedData(name="x", files="a.parquet"), str(tmp_path), read_record))
    assert [place.partition(", ")[2] for place, _ in found] == ["row 1", "row 2"]


def test_calls_of_one_message_keep_their_order():
    told = [USER, said("", call("bash", "a"), call("look", "b"))]
    (message,) = conversation_of({"messages": told}).messages[1:]
    assert [each.name for each in message.tool_calls] == ["bash", "look"]


def test_episodes_of_worlds_with_tools_have_their_calls_told_apart():
    reply = write_reply("I look.", [Call("bash", {"command": "é"}), Call("look", {})])
    told = [USER, {"role": "assistant", "content": f"<think>\nhm\n</think>\n{reply}"}]
    told += [{"role": "tool", "content": text} for text in ("1", "2", "3")]
    read = conversation_of(EPISODE | {"messages": told, "tools": TOOLS})
    said, *results = read.messages[1:]
    assert (said.content, said.reasoning, read.as_written) == ("I look.", "hm", False)
    assert [(c.name, c.arguments) for c in said.tool_calls] == [
        ("bash", '{"command": "é"}'),
        ("look", "{}"),
    ]
    assert [m.answers for m in results] == [*(c.id for c in said.tool_calls), CALL_ID]


def test_a_result_with_the_status_error_has_failed():
    told = [*WITH_TOOLS["messages"][:4], said("a"), *WITH_TOOLS["messages"][5:7], said("b")]
    told[3] = {**told[3], "is_error": None, "status": "error"}
    assert conversation_of({"messages": told}).failed == (True, False, False)
