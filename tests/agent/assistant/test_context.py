"""What the model reads, and what becomes of it when its context is nearly full."""

import dataclasses
from pathlib import Path

import pytest

from ale_jax.agent.assistant.context_room import SUMMARISE
from ale_jax.agent.assistant.conversation import Conversation
from ale_jax.agent.assistant.events import (
    Asked,
    CallEnded,
    Compacted,
    OutputsMoved,
    Replied,
    Started,
)
from ale_jax.agent.assistant.messages import AssistantCall, Usage
from ale_jax.agent.assistant.settings import Features, Limits
from tests.agent.assistant.scripted import AUTO, call, endpoint_that, in_turn, play


def reply(content, usage, calls=()):
    return Replied(content=content, reasoning="", calls=calls, stop="stop", usage=usage)


def test_tokens_are_those_that_were_counted_and_an_estimate_of_the_rest():
    started = Started(session="s", cwd="", model="m", mode="ask", system_prompt="x" * 50)
    conversation = Conversation("", [started, Asked(text="y" * 30)])
    assert conversation.num_tokens() == 20  # 80 characters, 4 for a token
    conversation.add(reply("z" * 20, Usage(45, 5)))
    assert conversation.num_tokens() == 50
    conversation.add(Asked(text="y" * 10))
    assert conversation.num_tokens() == 55  # 100 characters were 50 tokens


@pytest.mark.heavy
def test_a_summary_takes_the_place_of_the_conversation(folder):
    """In the gateway each letter is a token."""

    def say(messages):
        if messages[-1][1] == SUMMARISE:
            return "I have looked."
        if "I have looked." in messages[-1][1]:
            return "Done."
        return call("bash", command=f"echo {len(messages)}")

    settings = dataclasses.replace(AUTO, limits=Limits(context_tokens=1000))
    with endpoint_that(say) as endpoint:
        session = play(endpoint, folder, "Look around.", settings=settings)
    (compacted,) = session.of(Compacted)
    assert compacted.summary == "I have looked." and session.ended.answer == "Done."
    system, (role, text) = endpoint.seen[-1]
    assert system == endpoint.seen[0][0] and role == "user" and "Look around." in text
    fullest = max(sum(len(text) for _, text in seen) for seen in endpoint.seen)
    assert 800 < fullest < 1100


@pytest.mark.heavy
def test_long_outputs_that_are_old_become_references_before_anything_is_lost(folder):
    (folder / "long").write_text("x" * 1500)
    short = call("bash", command="true")
    script = [call("read", path="long"), *[short] * 3, call("bash", command="#" * 600), "Done."]
    settings = dataclasses.replace(AUTO, limits=Limits(context_tokens=3300))
    with endpoint_that(in_turn(*script)) as endpoint:
        session = play(endpoint, folder, "Read.", settings=settings)
    (moved,) = session.of(OutputsMoved)
    assert session.of(Compacted) == [] and session.ended.answer == "Done."
    before, after = (next(t for r, t in seen if r == "tool") for seen in endpoint.seen[-2:])
    assert before == "1\t" + "x" * 1500
    (path,) = moved.files.values()
    assert after == f"[1502 characters, which can be read in {path}]"
    assert Path(path).read_text() == before


@pytest.mark.heavy
def test_a_long_output_is_read_from_the_file_to_which_it_refers(folder):
    settings = dataclasses.replace(AUTO, limits=Limits(output_chars=200))

    def say(messages):
        results = [text for role, text in messages if role == "tool"]
        if not results:
            return call("bash", command="seq 1 1000")
        if len(results) == 1:
            path = results[0].rpartition("[all of it: ")[2].removesuffix("]")
            return call("read", path=path, offset=500, limit=1)
        return "Done."

    with endpoint_that(say) as endpoint:
        first, second = play(endpoint, folder, "Go.", settings=settings).of(CallEnded)
    assert first.output.startswith("1\n2\n") and "characters left out" in first.output
    assert "\n1000\n[all of it: " in first.output and len(first.output) < 500
    assert second.output.startswith("500\t500")


def test_calls_with_equal_ids_are_told_apart():
    """Some endpoints count them anew in each reply."""
    calls = (AssistantCall("call_0", "bash", "{}"),)
    conversation = Conversation()
    assert conversation.with_own_ids(calls) == calls
    conversation.add(reply("", None, calls))
    (renamed,) = conversation.with_own_ids(calls)
    assert renamed.id != "call_0" and renamed.name == "bash"


def test_the_nearest_agents_md_of_the_repository_is_in_the_prompt(folder):
    inner = folder / "a" / "b"
    inner.mkdir(parents=True)
    (folder.parent / "AGENTS.md").write_text("not ours")
    assert "not ours" not in prompt_of(inner)
    (folder / ".git").mkdir()
    (folder / "AGENTS.md").write_text("outer rule")
    assert "outer rule" in prompt_of(inner)
    (folder / "a" / "AGENTS.md").write_text("inner rule")
    assert "inner rule" in prompt_of(inner) and "outer rule" not in prompt_of(inner)
    off = dataclasses.replace(AUTO, features=Features(agents_md=False))
    assert "inner rule" not in prompt_of(inner, off)


def prompt_of(folder, settings=AUTO):
    with endpoint_that(in_turn("Yes.")) as endpoint:
        play(endpoint, folder, "Go.", settings=settings)
    return endpoint.seen[0][0][1]
