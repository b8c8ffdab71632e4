"""A session that is resumed equals one that was never interrupted, wherever it broke off."""

import dataclasses

import pytest

from ale_jax.agent.assistant.conversation import INTERRUPTED, Conversation
from ale_jax.agent.assistant.events import (
    Asked,
    CallEnded,
    Compacted,
    OutputsMoved,
    Replied,
    Started,
    from_json,
    to_json,
)
from ale_jax.agent.assistant.messages import AssistantCall, Usage
from tests.agent.assistant.scripted import call, endpoint_that, in_turn, play, state_of

CALLS = (AssistantCall("c1", "bash", '{"command": "ls"}'), AssistantCall("c2", "bash", "{}"))
STARTED = Started(
    session="s", cwd="/w", model="m", mode="ask", system_prompt="S", tools=({"a": 1},)
)
REPLIED = Replied(content="x", reasoning="r", calls=CALLS, stop="stop", usage=Usage(5, 2, 1))


@pytest.mark.heavy
def test_a_resumed_session_asks_with_the_same_messages_as_one_that_went_on(folder):
    def script():
        return in_turn(call("bash", command="echo hi"), "Done.", "Bye.")

    with endpoint_that(script()) as endpoint:
        play(endpoint, folder, "Greet.", "Leave.")
        unbroken = endpoint.seen[-1]
    with endpoint_that(script()) as endpoint:
        first = play(endpoint, folder, "Greet.")
        play(endpoint, folder, "Leave.", resume=first.id)
        assert endpoint.seen[-1] == unbroken
        assert len(endpoint.branches()) == 1


def test_what_the_model_wrote_is_sent_back_as_it_wrote_it():
    """Also its thoughts, and arguments that are no JSON."""
    calls = (AssistantCall("c1", "bash", "{ 'x"),)
    replied = dataclasses.replace(REPLIED, calls=calls)
    assert Conversation("", [STARTED, Asked(text="go"), replied]).messages()[2] == {
        "role": "assistant",
        "content": "x",
        "reasoning_content": "r",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{ 'x"}}
        ],
    }


def test_a_call_that_was_interrupted_gets_a_result():
    """Endpoints refuse a conversation in which a call has none."""
    done = CallEnded(call_id="c1", name="bash", output="a")
    events = [STARTED, Asked(text="go"), REPLIED, done]
    roles = [(each["role"], each["content"]) for each in Conversation("", events).messages()[-3:]]
    assert roles == [("assistant", "x"), ("tool", "a"), ("tool", INTERRUPTED)]


def test_a_line_that_was_cut_off_by_a_crash_is_dropped_and_the_log_goes_on(folder):
    log = state_of(folder).create()
    log.append(STARTED)
    log.append(Asked(text="first"))
    log.close()
    path = log.folder / "events.jsonl"
    path.write_bytes(path.read_bytes()[:-3])
    log = state_of(folder).open(log.id)
    assert log.events() == (STARTED,)
    log.append(Asked(text="second"))
    assert [event.text for event in log.events()[1:]] == ["second"]
    log.close()


def test_a_session_is_held_by_one_process_at_a_time(folder):
    log = state_of(folder).create()
    log.append(STARTED)
    with pytest.raises(ValueError, match="in use"):
        state_of(folder).open(log.id)
    log.close()
    state_of(folder).open(log.id).close()


@pytest.mark.parametrize("id", ["../other", "", "20260101-000000-00000000", "{folder}/../other"])
def test_an_id_is_never_a_path_elsewhere(folder, id):
    other = folder.parent / "other"
    other.mkdir()
    (other / "events.jsonl").touch()
    with pytest.raises(ValueError, match="no session"):
        state_of(folder).open(id.format(folder=folder))


def test_a_fork_begins_with_all_that_happened_and_leaves_the_original_alone(folder):
    with endpoint_that(in_turn("One.", "Two.")) as endpoint:
        first = play(endpoint, folder, "1")
        log = state_of(folder).fork(first.id)
        log.close()
        play(endpoint, folder, "2", resume=log.id)
    assert endpoint.seen[-1][1:] == [("user", "1"), ("assistant", "One."), ("user", "2")]
    assert [e.text for e in state_of(folder).events(first.id) if isinstance(e, Asked)] == ["1"]
    listed = state_of(folder).list()
    assert {info.id for info in listed} == {first.id, log.id} and listed[0].title == "1"


def test_every_stored_event_can_be_read_back():
    events = [
        STARTED,
        Asked(text="\ud800 lone"),
        REPLIED,
        CallEnded(agent="c1", call_id="c2", name="bash", output="o", is_error=True, whole="f"),
        OutputsMoved(files={"c1": "f"}),
        Compacted(summary="s"),
    ]
    read = [from_json(to_json(event)) for event in events]
    assert read[1].text == "? lone" and read[2:] == events[2:] and read[0] == events[0]


@pytest.mark.parametrize(
    "record", [{"event": "asked", "text": 3}, {"event": "no"}, {"event": "asked", "x": ""}, {}]
)
def test_what_is_no_event_is_refused(record):
    with pytest.raises((KeyError, TypeError, ValueError)):
        from_json(record)
