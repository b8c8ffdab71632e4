"""Tools of MCP servers that are real programs, called by the agent."""

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ale_jax.agent.assistant.events import CallEnded, Started
from ale_jax.agent.assistant.mcp_servers import McpTool, tool_of
from ale_jax.agent.assistant.settings import McpServer
from tests.agent.assistant.scripted import AUTO, call, endpoint_that, in_turn, play

PROGRAM = str(Path(__file__).parent / "mcp_example.py")


def with_server(*words, **fields):
    server = McpServer("calc", (sys.executable, *words), **fields)
    return dataclasses.replace(AUTO, mcp_servers=(server,))


@pytest.mark.heavy
def test_a_servers_tools_are_called_under_its_name(folder, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    say = in_turn(
        call("mcp__calc__add", a=2, b=3),
        call("mcp__calc__fail"),
        call("mcp__calc__add", a="x"),
        "5",
    )
    with endpoint_that(say) as endpoint:
        session = play(endpoint, folder, "Add.", settings=with_server(PROGRAM))
    added, failed, wrong = session.of(CallEnded)
    assert (added.output, added.is_error) == ("5, key None", False)
    assert failed.is_error and wrong.is_error
    (started,) = session.of(Started)
    offered = {each["function"]["name"]: each["function"] for each in started.tools}
    assert offered["mcp__calc__add"]["description"] == "Adds."
    assert offered["mcp__calc__add"]["parameters"]["required"] == ["a", "b"]


def test_a_server_is_reached_over_http(folder, mcp_url):
    server = McpServer("calc", url=mcp_url, headers={"Authorization": "Bearer key"})
    settings = dataclasses.replace(AUTO, mcp_servers=(server,))
    say = in_turn(call("mcp__calc__add", a=2, b=3), call("mcp__calc__fail"), "5")
    with endpoint_that(say) as endpoint:
        session = play(endpoint, folder, "Add.", settings=settings)
    added, failed = session.of(CallEnded)
    assert added.output.startswith("5,") and not added.is_error
    assert failed.is_error


def test_a_server_that_refuses_us_is_named(folder, mcp_url):
    settings = dataclasses.replace(AUTO, mcp_servers=(McpServer("calc", url=mcp_url),))
    with endpoint_that(in_turn()) as endpoint:
        with pytest.raises(ValueError, match=r"MCP server calc \(http.*does not start.*config"):
            play(endpoint, folder, "Add.", settings=settings)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "a command or a url"),
        ({"command": ("x",), "url": "http://127.0.0.1"}, "a command or a url"),
        ({"url": "ftp:tools"}, "must begin with http"),
    ],
)
def test_a_server_is_a_program_or_has_a_url(fields, reason):
    with pytest.raises(ValueError, match=reason):
        McpServer("calc", **fields)


def test_a_servers_tool_is_not_believed_to_change_nothing():
    assert not McpTool.only_reads


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"name": "n" * 60}, "cannot be called"),
        ({"name": "a\x1b[2J"}, "cannot be called"),
        ({"input_schema": {"description": "x" * 20_000}}, "too long"),
    ],
)
def test_a_tool_of_which_no_model_can_be_told_is_refused_by_name(fields, reason):
    offered = {"name": "add", "description": "Adds.", "input_schema": {}} | fields
    with pytest.raises(ValueError, match=f"MCP server calc.*{reason}"):
        tool_of(None, "calc", SimpleNamespace(**offered))


@pytest.mark.heavy
@pytest.mark.parametrize("command", ["import sys; sys.exit('no licence')", "absent-program"])
def test_a_server_that_does_not_start_is_named_with_what_it_said(folder, command):
    settings = with_server("-c", command)
    reason = "no licence"
    if command == "absent-program":
        reason = command
        settings = dataclasses.replace(AUTO, mcp_servers=(McpServer("calc", (command,)),))
    with endpoint_that(in_turn()) as endpoint:
        with pytest.raises(ValueError, match=f"MCP server calc.*does not start.*{reason}.*config"):
            play(endpoint, folder, "Add.", settings=settings)


ENDLESS = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answer = {"jsonrpc": "2.0", "id": asked["id"]}
    if asked["method"] == "initialize":
        answer["result"] = {
            "protocolVersion": asked["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "endless", "version": "1"},
        }
    elif asked["method"] == "tools/list":
        answer["result"] = {"tools": [], "nextCursor": "more"}
    else:
        answer["error"] = {"code": -32601, "message": "no such method"}
    print(json.dumps(answer), flush=True)
"""


@pytest.mark.heavy
def test_a_server_whose_list_has_no_end_is_named(folder):
    with endpoint_that(in_turn()) as endpoint:
        with pytest.raises(ValueError, match=r"MCP server calc.* more than 100 pages.*config"):
            play(endpoint, folder, "Add.", settings=with_server("-c", ENDLESS))
