"""The loop against a real gateway: what the model says is done, and what is sent back is exact."""

import asyncio
import dataclasses
from pathlib import Path

import pytest

from ale_jax.agent.assistant.assistant import Assistant, Setup
from ale_jax.agent.assistant.events import CallEnded, CallStarted, Ended, Replied, Written
from ale_jax.agent.assistant.settings import Features, Limits
from tests.agent.assistant.scripted import AUTO, call, endpoint_that, in_turn, play, state_of


@pytest.mark.heavy
def test_calls_are_run_until_the_model_finishes(folder):
    say = in_turn(
        f"<think>so</think>I look.{call('bash', command='echo one > a; cat a')}",
        call("read", path="a"),
        call("finish", answer="It is one."),
    )
    with endpoint_that(say) as endpoint:
        session = play(endpoint, folder, "What is it?")
        (branch,) = endpoint.branches()
    assert (session.ended.reason, session.ended.answer) == ("finished", "It is one.")
    assert session.ended.turns == 3 and (folder / "a").read_text() == "one\n"
    assert [each.output for each in session.of(CallEnded)][:2] == ["one", "1\tone"]
    # One branch: each request began with exactly what the policy had said before.
    assert len(branch.calls) == 3 and branch.calls[0].reply.reasoning == "so"
    assert endpoint.seen[1][1:] == [
        ("user", "What is it?"),
        ("assistant", f"<think>so</think>I look.{call('bash', command='echo one > a; cat a')}"),
        ("tool", "one"),
    ]


def test_a_reply_without_a_call_is_the_answer_and_is_seen_while_it_is_written(folder):
    with endpoint_that(in_turn("Hello.")) as endpoint:
        session = play(endpoint, folder, "Greet.")
    assert (session.ended.reason, session.ended.answer) == ("finished", "Hello.")
    assert "".join(each.text for each in session.of(Written)) == "Hello."
    (replied,) = session.of(Replied)
    assert replied.usage.completion == len("Hello.") + 1  # a token for each letter, and the end


def test_what_is_wrong_with_a_call_is_told_to_the_model(folder):
    say = in_turn(
        call("fly", to="Rome"),
        call("bash", cmd="ls"),
        call("read", path="absent"),
        call("finish"),
    )
    with endpoint_that(say) as endpoint:
        session = play(endpoint, folder, "Go.")
    told = [(each.is_error, each.output) for each in session.of(CallEnded)[:3]]
    assert all(is_error for is_error, _ in told)
    assert "there is no tool 'fly'" in told[0][1] and "bash" in told[0][1]
    assert "command: Field required" in told[1][1]
    assert "No such file" in told[2][1]
    assert session.ended.reason == "finished"


@pytest.mark.heavy
def test_what_a_tool_cannot_do_is_told_to_the_model(folder):
    say = in_turn(
        call("search", path="a" * 300),
        call("bash", command='rmdir "$PWD"; exit 3'),
        call("bash", command="ls"),
        call("finish", answer="So be it."),
    )
    with endpoint_that(say) as endpoint:
        session = play(endpoint, folder, "Go.")
    *told, _ = session.of(CallEnded)
    assert all(each.is_error for each in told)
    assert "search failed" in told[0].output and "File name too long" in told[0].output
    assert "bash failed" in told[2].output and "No such file or directory" in told[2].output
    assert (session.ended.reason, session.ended.answer) == ("finished", "So be it.")


@pytest.mark.heavy
def test_turns_are_limited(folder):
    settings = dataclasses.replace(AUTO, limits=Limits(turns=2))
    with endpoint_that(lambda messages: call("bash", command="true")) as endpoint:
        session = play(endpoint, folder, "Go on for ever.", settings=settings)
    assert (session.ended.reason, session.ended.turns) == ("max_turns", 2)


def test_a_sub_agent_has_its_own_context_and_returns_text(folder):
    def say(messages):
        requests = [text for role, text in messages if role == "user"]
        if requests == ["Count."]:
            is_main = messages[-1][0] == "user"
            return call("task", task="Count the files.") if is_main else call("finish", answer="3")
        assert requests == ["Count the files."]
        return "There are 3."

    with endpoint_that(say) as endpoint:
        session = play(endpoint, folder, "Count.")
        assert len(endpoint.branches()) == 2
    (task, _) = (each for each in session.of(CallEnded) if not each.agent)
    assert task.output == "There are 3." and session.ended.answer == "3"
    assert {each.agent for each in session.of(Replied)} == {"", task.call_id}


@pytest.mark.heavy
def test_sub_agents_of_one_reply_work_at_the_same_time(folder):
    def say(messages):
        requests = [text for role, text in messages if role == "user"]
        if requests == ["Count."]:
            if messages[-1][0] != "user":
                return "Done."
            first, *others = (call("task", task=f"part {n}") for n in range(3))
            return "\n".join(
                (call("bash", command="echo 1"), first, *others, call("search", pattern="x"))
            )
        if messages[-1][0] == "user":
            return call("bash", command=f"echo of {requests[0]}")
        return f"This is {requests[0]}."

    with endpoint_that(say) as endpoint:
        session = play(endpoint, folder, "Count.")
        assert len(endpoint.branches()) == 4
    main = [each for each in session.events if not each.agent]
    steps = [
        ("begins" if isinstance(each, CallStarted) else "ends", each)
        for each in main
        if isinstance(each, CallStarted | CallEnded)
    ]
    names = {each.call.id: each.call.name for what, each in steps if what == "begins"}
    order = [
        (what, names[each.call.id if what == "begins" else each.call_id]) for what, each in steps
    ]
    assert order[:2] == [("begins", "bash"), ("ends", "bash")]
    assert order[2:8] == 3 * [("begins", "task")] + 3 * [("ends", "task")]
    assert order[8:] == [("begins", "search"), ("ends", "search")]
    outputs = {each.output for each in session.of(CallEnded) if each.name == "task"}
    assert outputs == {f"This is part {n}." for n in range(3)}
    assert session.ended.answer == "Done."


def test_a_feature_that_is_off_is_not_offered(folder):
    features = Features(bash=False, task=False, finish=False)
    settings = dataclasses.replace(AUTO, features=features)
    with endpoint_that(in_turn(call("bash", command="touch a"), "No.")) as endpoint:
        session = play(endpoint, folder, "Try.", settings=settings)
    assert "there is no tool 'bash'; there are: read, write, edit, search" in (
        session.of(CallEnded)[0].output
    )
    assert not (folder / "a").exists() and "call finish" not in endpoint.seen[0][0][1]


def test_an_endpoint_that_refuses_is_the_reason_of_the_end(folder):
    with endpoint_that(in_turn("Hello.")) as endpoint:
        endpoint.token = "wrong"
        session = play(endpoint, folder, "Greet.")
    assert session.ended.reason == "failed"
    assert "refused (401)" in session.ended.detail and "OPENAI_API_KEY" in session.ended.detail


def test_work_that_is_cancelled_ends_the_call_and_the_session_goes_on(folder):
    """None: the policy does not answer."""
    with endpoint_that(in_turn(None, "Again.")) as endpoint:

        async def talk():
            asked = asyncio.Event()
            told = []

            async def hear(event):
                told.append(event)
                if isinstance(event, Written):
                    asked.set()

            setup = Setup(AUTO, endpoint.settings, Path(folder), None, (hear,))
            assistant = await Assistant.open(setup, state_of(folder).create())
            work = asyncio.ensure_future(assistant.work_on("Wait."))
            await asked.wait()
            work.cancel()
            await asyncio.wait([work])
            ended = await assistant.work_on("Now?")
            await assistant.close()
            return work, [each.reason for each in told if isinstance(each, Ended)], ended

        work, reasons, ended = asyncio.run(talk())
    assert work.cancelled() and reasons == ["cancelled", "finished"] and ended.answer == "Again."
    assert endpoint.seen[1][1:] == [("user", "Wait."), ("user", "Now?")]
