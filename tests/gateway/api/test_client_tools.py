"""Tools that clients of all APIs offer: functions, custom ones, namespaces and those of servers."""

import dataclasses
import json
from functools import partial

import pytest
from pydantic import ValidationError

from ale_jax.gateway.api import openai_chat, openai_responses
from ale_jax.gateway.api.fields import MAX_TOOLS
from ale_jax.gateway.api.responses_tools import origins
from ale_jax.gateway.messages import ToolCall
from ale_jax.gateway.requests import ApiError
from tests.gateway.api.test_client_requests import SCHEMA, USER, chat, claude, codex
from tests.gateway.test_app import BASH, CALL, TOOLS, gateway_with
from tests.rows import each_row

FUNCTION = {"name": "read", "description": "Reads.", "parameters": SCHEMA}
PLAIN = {"type": "function", "function": FUNCTION}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}
NAMESPACE = {
    "type": "namespace",
    "name": "agents",
    "description": "Sub-agents.",
    "tools": [{"type": "function", "name": "spawn", "strict": False, "parameters": SCHEMA}],
}
CODEX = [
    {"type": "function", "strict": None, **FUNCTION},
    NAMESPACE,
    {"type": "custom", "name": "patch", "description": "Patches.", "format": GRAMMAR},
    {"type": "web_search", "external_web_access": True},
    {"type": "local_shell"},
    {"type": "mcp", "server_label": "s", "allowed_tools": None},
]


def names(asked):
    return [tool["function"]["name"] for tool in asked.tools]


def test_codexs_tools_become_functions():
    asked = codex(tools=CODEX)
    assert names(asked) == ["read", "agents__spawn", "patch"]
    assert asked.tools[0] == PLAIN
    patch = asked.tools[2]["function"]
    assert patch["description"].startswith("Patches.") and "start: /x/" in patch["description"]
    assert patch["parameters"]["required"] == ["input"]
    assert asked.unseen == ("tool web_search", "tool local_shell", "tool mcp")
    found = origins(openai_responses.ResponsesBody(input="x", tools=CODEX).tools)
    spawn, patch = found["agents__spawn"], found["patch"]
    assert (spawn.name, spawn.namespace, spawn.is_custom) == ("spawn", "agents", False)
    assert (patch.name, patch.namespace, patch.is_custom) == ("patch", "", True)


def test_tools_of_the_other_apis_become_functions():
    custom = {"type": "custom", "custom": {"name": "patch", "format": {"type": "text"}}}
    grammar = {"type": "custom", "custom": {"name": "x", "format": {"grammar": GRAMMAR}}}
    asked = chat(tools=[PLAIN, custom, grammar, {"type": "web_search_preview"}])
    assert names(asked) == ["read", "patch", "x"] and asked.unseen == ("tool web_search_preview",)
    assert "start: /x/" in asked.tools[2]["function"]["description"]
    tools = [
        {"name": "read", "description": "Reads.", "input_schema": SCHEMA, "type": None},
        {"type": "custom", "name": "write", "input_schema": SCHEMA, "defer_loading": True},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {"type": "mcp_toolset", "mcp_server_name": "s"},
    ]
    asked = claude(tools=tools)
    assert names(asked) == ["read", "write"] and asked.tools[0] == PLAIN
    assert asked.unseen == ("tool web_search_20250305", "tool mcp_toolset")


def named(number):
    return {"type": "function", "name": f"tool{number}"}


@pytest.mark.parametrize("ask", [chat, claude, codex])
def test_hundreds_of_tools_are_offered_and_no_more_than_a_bound(ask):
    def offered(count):
        function = {chat: lambda each: {"function": each}}.get(ask, lambda each: each)
        each = [named(number) for number in range(count)]
        if ask is claude:
            each = [{"name": tool["name"]} for tool in each]
        return [function(tool) for tool in each]

    assert len(ask(tools=offered(300)).tools) == 300
    with pytest.raises(ValidationError, match="tools"):
        ask(tools=offered(MAX_TOOLS + 1))


def test_namespaces_do_not_go_round_the_bound():
    many = [NAMESPACE | {"tools": [named(n) for n in range(MAX_TOOLS // 2)]}] * 3
    with pytest.raises(ApiError, match="functions") as refused:
        codex(tools=many)
    assert refused.value.field == "tools"


ALLOWED = {"type": "allowed_tools", "mode": "required"}
CHOICES = {
    "allowed functions": (
        partial(codex, tools=CODEX),
        ALLOWED | {"tools": [{"type": "function", "name": "read"}, {"type": "mcp"}]},
        ("required", ("read",)),
    ),
    "of a namespace": (
        partial(codex, tools=CODEX),
        ALLOWED
        | {"mode": "auto", "tools": [{"type": "function", "namespace": "agents", "name": "spawn"}]},
        ("auto", ("agents__spawn",)),
    ),
    "a custom tool": (
        partial(codex, tools=CODEX),
        {"type": "custom", "name": "patch"},
        ("patch", None),
    ),
    "of chat completions": (
        partial(chat, tools=[PLAIN]),
        {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "required",
                "tools": [{"type": "function", "function": {"name": "read"}}],
            },
        },
        ("required", ("read",)),
    ),
    "a custom one of chat completions": (
        partial(chat, tools=[{"type": "custom", "custom": {"name": "patch"}}]),
        {"type": "custom", "custom": {"name": "patch"}},
        ("patch", None),
    ),
}


@each_row("ask, choice, wanted", CHOICES.values(), ids=CHOICES)
def test_choices_of_tools(ask, choice, wanted):
    asked = ask(tool_choice=choice)
    assert (asked.tool_choice, asked.allowed) == wanted


REFUSED = {
    "a tool without a name": (partial(claude, tools=[{"input_schema": {}}]), "tools.0.name"),
    "a nameless tool of a namespace": (
        partial(codex, tools=[NAMESPACE | {"tools": [{"type": "function"}]}]),
        "tools.0.tools.0.name",
    ),
    "a server's tool that must be called": (
        partial(codex, tools=CODEX, tool_choice=ALLOWED | {"tools": [{"type": "web_search"}]}),
        "tool_choice",
    ),
    "a custom tool without itself": (partial(chat, tools=[{"type": "custom"}]), "tools.0.custom"),
    "a tool that is called as one of a namespace": (
        partial(codex, tools=[NAMESPACE, {"type": "function", "name": "agents__spawn"}]),
        "tools.1.name",
    ),
    "a custom tool that is called as a function": (
        partial(
            chat,
            tools=[
                {"type": "custom", "custom": {"name": "patch"}},
                {"type": "function", "function": {"name": "patch"}},
            ],
        ),
        "tools.0.custom.name",
    ),
    "a function without itself": (partial(chat, tools=[{}]), "tools.0.function"),
}


@each_row("ask, field", REFUSED.values(), ids=REFUSED)
def test_a_tool_that_means_nothing_is_refused_by_its_field(ask, field):
    with pytest.raises(ApiError) as refused:
        ask()
    assert refused.value.field.startswith(field) and refused.value.status == 400


@pytest.mark.parametrize("arguments", ['{"input": "a"}', '{"text": "a"}', '{"input": 1}', "{}"])
def test_a_custom_call_comes_back_as_the_policy_wrote_it(arguments):
    """Also one whose input is missing, or it would be taken for one that the agent has changed."""
    call = ToolCall("patch", arguments, "c")
    body = openai_chat.ChatBody(
        messages=[USER], tools=[{"type": "custom", "custom": {"name": "patch"}}]
    )
    sent = openai_chat._call(call, openai_chat.custom_names(body))
    assert sent["type"] == "custom"
    (_, back) = chat({"role": "assistant", "tool_calls": [sent]}).messages
    (again,) = back.tool_calls
    assert json.loads(again.arguments) == json.loads(arguments)
    assert dataclasses.replace(again, arguments=arguments) == call


@pytest.fixture
def gateway():
    with gateway_with() as gateway:
        yield gateway


def test_a_custom_tool_is_called_with_its_text(gateway, monkeypatch):
    call = '<tool_call>{"name": "patch", "arguments": {"input": "a"}}</tool_call>'
    monkeypatch.setattr(gateway.policy, "say", lambda messages: call)
    client = gateway.openai(gateway.open())
    tools = [{"type": "custom", "custom": {"name": "patch"}}]
    asked = {"model": "m", "messages": [{"role": "user", "content": "task"}], "tools": tools}
    (choice,) = client.chat.completions.create(**asked).choices
    (told,) = choice.message.tool_calls
    assert (told.type, told.custom.name, told.custom.input) == ("custom", "patch", "a")
    chunks = list(client.chat.completions.create(**asked, stream=True))
    (told,) = chunks[-1].choices[0].delta.tool_calls
    assert told.to_dict()["custom"] == {"name": "patch", "input": "a"}


def test_of_the_tools_only_those_that_are_allowed_are_called(gateway):
    client = gateway.openai(gateway.open())
    asked = {"model": "m", "messages": [{"role": "user", "content": "task"}]}
    read = {"type": "function", "function": BASH | {"name": "read"}}
    for name, calls in (("bash", 1), ("read", 0)):
        function = {"type": "function", "function": {"name": name}}
        allowed = {"mode": "auto", "tools": [function]}
        choice = {"type": "allowed_tools", "allowed_tools": allowed}
        (found,) = client.chat.completions.create(
            **asked, tools=[*TOOLS, read], tool_choice=choice
        ).choices
        assert len(found.message.tool_calls or ()) == calls
        assert (CALL in found.message.content) == (not calls)
