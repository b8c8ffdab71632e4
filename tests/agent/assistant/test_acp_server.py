"""ACP: the official client speaks to `ale-agent acp`, which speaks to a real gateway."""

import asyncio
import contextlib
import os
import socket
import sys
from pathlib import Path

import acp
import pytest
from acp.schema import (
    AllowedOutcome,
    DeniedOutcome,
    HttpHeader,
    HttpMcpServer,
    RequestPermissionResponse,
    SseMcpServer,
)
from acp.stdio import spawn_agent_process

from ale_jax.agent.assistant.acp_server import AcpAgent
from ale_jax.agent.assistant.settings import Settings
from tests.agent.assistant.scripted import call, endpoint_that, in_turn, state_of

ROOT = Path(__file__).parents[3]


class Editor:
    """A client that answers each question for permission with the next of `answers`."""

    def __init__(self, answers=()):
        self.answers, self.updates, self.asked = list(answers), [], []
        self.heard = asyncio.Event()

    async def request_permission(self, session_id, tool_call, options, **_):
        self.asked.append((tool_call.title, [option.kind for option in options]))
        answer = self.answers.pop(0)
        if answer is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(
            outcome=AllowedOutcome(outcome="selected", option_id=answer)
        )

    async def session_update(self, session_id, update, **_):
        self.updates.append(update)
        self.heard.set()

    def on_connect(self, conn):
        pass

    def kinds(self):
        return [update.session_update for update in self.updates]

    def text(self, kind="agent_message_chunk"):
        return "".join(u.content.text for u in self.updates if u.session_update == kind)


@contextlib.asynccontextmanager
async def connected(editor, endpoint, folder):
    """The client and the agent, at the two ends of a socket."""
    ends = socket.socketpair()
    (ours, to_agent), (its, to_client) = [
        await asyncio.open_unix_connection(sock=each) for each in ends
    ]
    agent = AcpAgent(Settings(), endpoint.settings, state_of(folder))
    serving = asyncio.ensure_future(
        acp.run_agent(agent, to_client, its, use_unstable_protocol=True)
    )
    connection = acp.connect_to_agent(editor, to_agent, ours, use_unstable_protocol=True)
    try:
        await connection.initialize(protocol_version=acp.PROTOCOL_VERSION)
        yield connection
    finally:
        await connection.close()
        to_agent.close()
        await serving
        to_client.close()
        await agent.close()


@contextlib.asynccontextmanager
async def started(editor, endpoint, folder):
    """The agent as a program, as editors start it."""
    command = [sys.executable, "-m", "ale_jax.agent.assistant.main", "acp"]
    command += ["--base-url", endpoint.url, "--model", "policy", "--mode", "auto"]
    command += ["--state", str(folder.parent / "state"), "--config", str(config(folder))]
    environment = os.environ | {"OPENAI_API_KEY": endpoint.token, "PYTHONPATH": str(ROOT)}
    async with spawn_agent_process(editor, *command, env=environment, cwd=folder) as spawned:
        yield spawned[0]


def config(folder):
    path = folder.parent / "config.toml"
    path.touch()
    return path


def ask(connection, session, text):
    return connection.prompt(session_id=session, prompt=[acp.text_block(text)])


@pytest.mark.heavy
def test_a_prompt_is_answered_with_updates_and_what_is_refused_is_not_done(folder):
    say = in_turn(
        f"I make it.{call('bash', command='touch a')}",
        call("bash", command="touch b"),
        "Made.",
    )

    async def talk(endpoint):
        editor = Editor(answers=["once", None])
        async with connected(editor, endpoint, folder) as connection:
            session = await connection.new_session(cwd=str(folder), mcp_servers=[])
            assert session.modes.current_mode_id == "ask"
            response = await ask(connection, session.session_id, "Make a and b.")
        return editor, response

    with endpoint_that(say) as endpoint:
        editor, response = asyncio.run(talk(endpoint))
    assert response.stop_reason == "end_turn"
    assert (folder / "a").exists() and not (folder / "b").exists()
    kinds = ["allow_once", "allow_always", "reject_once"]
    assert editor.asked == [("bash: touch a", kinds), ("bash: touch b", kinds)]
    assert editor.text() == "I make it.Made."
    ended = [u.status for u in editor.updates if u.session_update == "tool_call_update"]
    assert ended == ["completed", "failed"]
    assert "usage_update" in editor.kinds()


def test_sessions_are_listed_loaded_forked_resumed_and_closed(folder):
    async def talk(endpoint):
        editor = Editor()
        async with connected(editor, endpoint, folder) as connection:
            where = {"cwd": str(folder), "mcp_servers": []}
            first = (await connection.new_session(**where)).session_id
            await ask(connection, first, "1")
            fork = (await connection.fork_session(session_id=first, **where)).session_id
            await ask(connection, fork, "2")
            await connection.close_session(session_id=first)
            with pytest.raises(acp.RequestError, match="not open"):
                await ask(connection, first, "3")
            await connection.resume_session(session_id=first, **where)
            await ask(connection, first, "4")
            listed = (await connection.list_sessions()).sessions
            editor.updates.clear()
            await connection.load_session(session_id=fork, **where)
            return editor, first, fork, listed

    with endpoint_that(in_turn("One.", "Two.", "Four.")) as endpoint:
        editor, first, fork, listed = asyncio.run(talk(endpoint))
    assert endpoint.seen[1][1:] == [("user", "1"), ("assistant", "One."), ("user", "2")]
    assert endpoint.seen[2][1:] == [("user", "1"), ("assistant", "One."), ("user", "4")]
    assert {each.session_id for each in listed} == {first, fork}
    assert listed[0].title == "1" and listed[0].cwd == str(folder)
    assert editor.text("user_message_chunk") == "12" and editor.text() == "One.Two."


def test_a_prompt_can_be_cancelled_and_the_mode_be_set(folder):
    async def talk(endpoint):
        editor = Editor()
        async with connected(editor, endpoint, folder) as connection:
            session = await connection.new_session(cwd=str(folder), mcp_servers=[])
            work = asyncio.ensure_future(ask(connection, session.session_id, "Wait."))
            await editor.heard.wait()
            await connection.cancel(session_id=session.session_id)
            cancelled = await work
            await connection.set_session_mode(session_id=session.session_id, mode_id="auto")
            done = await ask(connection, session.session_id, "Make a.")
            with pytest.raises(acp.RequestError, match="must be one of"):
                await connection.set_session_mode(session_id=session.session_id, mode_id="yes")
        return editor, cancelled, done

    with endpoint_that(in_turn(None, call("write", path="a", content="x"), "Made.")) as endpoint:
        editor, cancelled, done = asyncio.run(talk(endpoint))
    (begun,) = (u for u in editor.updates if u.session_update == "tool_call")
    (change,) = begun.content
    assert (change.path, change.old_text, change.new_text) == (str(folder / "a"), None, "x")
    assert cancelled.stop_reason == "cancelled" and done.stop_reason == "end_turn"
    assert (folder / "a").read_text() == "x" and editor.asked == []
    assert "current_mode_update" in editor.kinds()


def test_what_the_client_cannot_have_is_an_error_with_a_reason(folder):
    async def talk(endpoint):
        async with connected(Editor(), endpoint, folder) as connection:
            for cwd in ("relative", str(folder / "absent")):
                with pytest.raises(acp.RequestError, match="absolute path of a directory"):
                    await connection.new_session(cwd=cwd, mcp_servers=[])
            with pytest.raises(acp.RequestError, match="no session"):
                await connection.load_session(cwd=str(folder), session_id="../x", mcp_servers=[])

    with endpoint_that(in_turn()) as endpoint:
        asyncio.run(talk(endpoint))


def test_an_editors_mcp_servers_are_reached_over_http(folder, mcp_url):
    key = HttpHeader(name="Authorization", value="Bearer key")
    server = HttpMcpServer(type="http", name="calc", url=mcp_url, headers=[key])

    async def talk(endpoint):
        editor = Editor(answers=["once"])
        async with connected(editor, endpoint, folder) as connection:
            session = await connection.new_session(cwd=str(folder), mcp_servers=[server])
            await ask(connection, session.session_id, "Add.")
            with pytest.raises(acp.RequestError, match=r"sse.*cannot be reached"):
                event_stream = SseMcpServer(type="sse", name="calc", url=mcp_url, headers=[])
                await connection.new_session(cwd=str(folder), mcp_servers=[event_stream])
        return editor

    with endpoint_that(in_turn(call("mcp__calc__add", a=2, b=3), "It is 5.")) as endpoint:
        editor = asyncio.run(talk(endpoint))
    assert editor.text() == "It is 5."
    ended = [u.status for u in editor.updates if u.session_update == "tool_call_update"]
    assert ended[-1] == "completed"


@pytest.mark.heavy
def test_the_program_speaks_over_its_standard_input_and_output(folder):
    async def talk(endpoint):
        editor = Editor()
        async with started(editor, endpoint, folder) as connection:
            told = await connection.initialize(protocol_version=acp.PROTOCOL_VERSION)
            session = await connection.new_session(cwd=str(folder), mcp_servers=[])
            await ask(connection, session.session_id, "Who am I?")
        return editor, told

    # A command's output must not get among the messages.
    with endpoint_that(in_turn(call("bash", command="echo $$"), "You.")) as endpoint:
        editor, told = asyncio.run(talk(endpoint))
    assert told.agent_info.name == "ale-agent" and told.agent_capabilities.load_session
    assert told.agent_capabilities.mcp_capabilities.http
    assert editor.text() == "You."
