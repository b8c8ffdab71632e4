"""Conversations that are exported come back as they were; ATIF as harbor and others write it."""

import contextlib
import copy
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ale_jax import launch
from ale_jax.agent.assistant.atif import trajectory_of
from ale_jax.agent.assistant.events import CallEnded, Compacted
from ale_jax.agent.assistant.messages import AssistantCall
from ale_jax.config.recorded import RecordedData
from ale_jax.gateway.messages import ChatMessage, ToolCall
from ale_jax.recorded import export_command
from ale_jax.recorded.conversation import Conversation
from ale_jax.recorded.export import as_atif, as_messages
from ale_jax.recorded.files import read_all
from ale_jax.recorded.formats import conversation_of, read_record
from ale_jax.recorded.messages import CALL_ID
from tests.agent.assistant.test_atif import KEYS, replied, started
from tests.recorded.made import TOOLS, WITH_TOOLS, write
from tests.recorded.test_formats import EPISODE

TEXT = st.text(alphabet='ab \n{"<é', max_size=8)
ARGUMENTS = st.sampled_from(['{"a": 1}', '{"a":1}', "{", "[1]", "{}", '{"é": "\\u00e9"}'])


@st.composite
def conversations(draw):
    messages = [ChatMessage("user", draw(TEXT))]
    for turn in range(draw(st.integers(1, 3))):
        names = [f"c{turn}.{n}" for n in range(draw(st.integers(0, 2)))]
        calls = tuple(ToolCall("bash", draw(ARGUMENTS), name) for name in names)
        messages.append(ChatMessage("assistant", draw(TEXT), draw(TEXT), calls))
        for name in names or draw(st.sampled_from([[], [CALL_ID]])):
            messages.append(ChatMessage("tool", draw(TEXT), answers=name))
        if draw(st.booleans()):
            messages.append(ChatMessage(draw(st.sampled_from(["user", "system"])), draw(TEXT)))
    replies = sum(message.role == "assistant" for message in messages)
    flags = st.lists(st.booleans(), min_size=replies, max_size=replies).map(tuple)
    return Conversation(
        messages=tuple(messages),
        failed=draw(flags),
        learned=draw(flags),
        tools=tuple(draw(st.sampled_from([[], TOOLS]))),
        as_written=draw(st.booleans()),
        reward=draw(st.sampled_from([None, 0.0, -0.5, 1.0])),
        item=draw(st.sampled_from([None, ("shell", "sort", 3), ("w:W", "f", "name")])),
    )


@given(conversations())
def test_messages_and_atif_come_back_equal(conversation):
    for exported in (as_messages(conversation), as_atif(conversation, "n")):
        assert conversation_of(json.loads(json.dumps(exported))) == conversation


@pytest.mark.parametrize("record", [WITH_TOOLS, EPISODE], ids=["messages", "episode"])
def test_what_was_read_from_files_comes_back_equal(record):
    read = conversation_of(record)
    assert conversation_of(as_messages(read)) == conversation_of(as_atif(read, "n")) == read


def test_all_keys_are_those_of_the_format():
    trajectory = as_atif(conversation_of(WITH_TOOLS), "n")
    assert trajectory["schema_version"] == "ATIF-v1.8"
    assert trajectory.keys() <= KEYS["trajectory"]
    assert [step["step_id"] for step in trajectory["steps"]] == list(range(1, 8))
    for step in trajectory["steps"]:
        assert step.keys() <= KEYS["step"]
        for result in step.get("observation", {}).get("results", ()):
            assert result.keys() <= KEYS["result"]
        assert all(call.keys() <= KEYS["call"] for call in step.get("tool_calls", ()))


def test_what_the_format_cannot_say_is_refused():
    told = (ChatMessage("user", "a"), ChatMessage("tool", "b", answers="c"))
    with pytest.raises(ValueError, match="n: a tool's result that does not follow a reply"):
        as_atif(Conversation(told, (), ()), "n")


ATIF = {
    "schema_version": "ATIF-v1.6",
    "session_id": "s",
    "agent": {"name": "a", "version": "1", "tool_definitions": TOOLS},
    "steps": [
        {"step_id": 1, "source": "user", "message": [{"type": "text", "text": "count"}]},
        {"step_id": 2, "source": "agent", "message": "old", "is_copied_context": True},
        {
            "step_id": 3,
            "source": "agent",
            "message": "",
            "tool_calls": [
                {"tool_call_id": "c", "function_name": "bash", "arguments": {"command": "ls"}}
            ],
            "observation": {"results": [{"source_call_id": "c", "content": "a.txt"}]},
        },
        {
            "step_id": 4,
            "source": "agent",
            "message": "ls",
            "observation": {"results": [{"content": "a.txt"}]},
        },
        {"step_id": 5, "source": "agent", "message": "done", "llm_call_count": 0},
    ],
}


def test_steps_of_other_agents():
    read = conversation_of(ATIF)
    roles = ["user", "assistant", "assistant", "tool", "assistant", "user", "assistant"]
    assert [message.role for message in read.messages] == roles
    assert read.learned == (False, True, True, False)
    assert read.messages[2].tool_calls == (ToolCall("bash", '{"command": "ls"}', "c"),)
    assert [tool["function"]["name"] for tool in read.tools] == ["bash", "look"]


def test_sessions_of_our_own_agent_are_read_up_to_where_their_history_is_replaced():
    call = AssistantCall("c", "bash", "{}")
    events = [
        started(),
        replied("", (call,)),
        CallEnded(agent="", at=2, call_id="c", name="bash", output="no", is_error=True),
        replied("a summary", for_summary=True),
        Compacted(agent="", at=3, summary="a summary"),
        replied("done"),
    ]
    read = conversation_of(trajectory_of(events).to_json())
    assert [message.content for message in read.messages] == ["S", "", "no"]
    assert read.failed == (True,)


def with_step(number, **fields):
    changed = copy.deepcopy(ATIF)
    changed["steps"][number] |= fields
    return changed


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ({"steps": []}, r"steps: \[\] is no list"),
        ({"steps": [3]}, r"steps\.0: 3 is no object"),
        (with_step(0, source="robot"), r"steps\.0\.source: 'robot'"),
        (with_step(0, message=None), r"steps\.0\.message: None"),
        (with_step(2, tool_calls=[{"function_name": "a"}]), r"steps\.2\.tool_calls: .* arguments"),
        (with_step(2, tool_calls={"a": 1}), r"steps\.2\.tool_calls: .* no list"),
        (with_step(2, observation={"results": [1]}), r"steps\.2\.observation\.results: 1"),
        (with_step(2, extra=[1]), r"steps\.2\.extra: \[1\] is no object"),
        (ATIF | {"agent": "a"}, "agent: 'a' is no object"),
        (WITH_TOOLS | {"episode": {"world": "a"}}, r"episode: .* world, family, item"),
        (WITH_TOOLS | {"episode": 3}, r"episode: 3 is no object"),
    ],
)
def test_damaged_records_are_told_by_field(record, field):
    with pytest.raises(ValueError, match=f"^{field}"):
        conversation_of(record)


def test_an_exported_episode_still_says_what_it_played():
    read = conversation_of(as_messages(conversation_of(EPISODE)))
    assert read.item == ("shell", "sort", 3) and read.as_written


def command(*arguments):
    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        code = launch.main(["ale-jax", "export", *arguments])
    return code, printed.getvalue() + errors.getvalue()


@pytest.fixture
def run(tmp_path):
    """The folder of a run with two evaluations."""
    for name, samples in (("a", 2), ("b", 1)):
        folder = tmp_path / "run" / "evals" / name
        folder.mkdir(parents=True)
        write(folder / "episodes.jsonl", *(EPISODE | {"sample": n} for n in range(samples)))
    return tmp_path / "run"


@pytest.mark.parametrize("format", ["messages", "atif"])
def test_the_command_writes_what_a_warm_start_reads(run, tmp_path, format):
    out = tmp_path / "out"
    said = command(f"--episodes={run}", f"--format={format}", f"--out={out}")
    assert said == (0, f"3 episodes are in {out}\n")
    data = RecordedData(name="x", files=f"{out}/*")
    assert [told for _, told in read_all(data, "", read_record)] == [conversation_of(EPISODE)] * 3


def test_an_export_that_breaks_off_leaves_nothing_that_could_be_taken_for_all(
    run, tmp_path, monkeypatch
):
    told = iter([{"a": 1}])
    monkeypatch.setattr(export_command, "as_messages", lambda conversation: next(told))
    with pytest.raises(StopIteration):
        command(f"--episodes={run}", f"--out={tmp_path / 'out'}")
    assert [each.name for each in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "xml"}, "--format=xml is unknown: choose one of messages, atif"),
        ({"out": ""}, "--out is missing"),
        ({"out": "run"}, "exists: name a folder that does not exist yet"),
        ({"episodes": "nowhere"}, "there is no episodes.jsonl"),
        ({"workdir": "run"}, "--workdir has no use with --episodes"),
        ({"config": "smoke"}, "--config has no use with --episodes"),
        ({"config.seed": "3"}, "--config.seed=3 has no use with --episodes"),
    ],
)
def test_what_cannot_be_exported_is_said_in_one_line(run, tmp_path, monkeypatch, change, message):
    monkeypatch.chdir(tmp_path)
    flags = {"episodes": "run/evals/a", "out": "out"} | change
    code, said = command(*(f"--{name}={value}" for name, value in flags.items()))
    assert code == 2 and message in said and said.count("\n") == 1
