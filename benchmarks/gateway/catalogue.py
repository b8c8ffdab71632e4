"""The clients: how each is got, how it is started, and which tool it runs commands with."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ale_jax.config.agent import ExternalAgent
from benchmarks.gateway.recipes import Recipe, recipes

PROGRAMS = Path(__file__).with_name("client_programs")


@dataclasses.dataclass(frozen=True)
class Call:
    """How the policy calls a tool of a client. argument: the one that has what is done; more: the
    others."""

    tool: str
    argument: str
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __call__(self, value: str | list[str]) -> str:
        arguments = {self.argument: value, **self.more}
        call = json.dumps({"name": self.tool, "arguments": arguments})
        return f"\n<tool_call>\n{call}\n</tool_call>"


@dataclasses.dataclass(frozen=True)
class Code:
    """How the policy writes Python for a client that runs it. template: with a place for what is
    done, as a literal."""

    template: str
    tool: str = ""  # none is offered

    def __call__(self, value: str) -> str:
        return f"\n<code>\n{self.template.format(value)}\n</code>"


@dataclasses.dataclass(frozen=True)
class Client:
    """name: its folder in /opt. act: runs a command. last: the command that ends the task; end: the
    code that does; neither: a reply without a call. delegate: gives a task to a sub-agent; wait:
    waits for one, by its id, which `agent_id` finds in what the client has said of it."""

    name: str
    recipe: Recipe
    act: Call | Code
    last: str = ""
    end: Code | None = None
    delegate: Call | None = None
    wait: Call | None = None
    agent_id: str = ""


def _ours(name: str, package: str, env: tuple[tuple[str, str], ...] = ()) -> Client:
    """A library, and a program of ours that uses it."""
    program = (PROGRAMS / f"{name.replace('-', '_')}.py").read_text()
    command = (f"/opt/{name}/bin/python", "-c", program, "{instruction}")
    install = f"python3 -m venv /opt/{name} && /opt/{name}/bin/pip install {package}"
    return Client(name, Recipe(install, ExternalAgent(command=command, env=env)), BASH)


BASH = Call("bash", "command")
WORKS = {"description": "Works."}
RUN = "import subprocess\nprint(subprocess.run({!r}, shell=True, capture_output=True).stdout)"
RECIPES = recipes()
CLIENTS = (
    _ours("openai", "openai"),
    _ours("anthropic", "anthropic"),
    # There is no network to get another map of costs from.
    _ours("litellm", "litellm", (("LITELLM_LOCAL_MODEL_COST_MAP", "True"),)),
    _ours("openai-agents", "openai-agents"),
    Client(
        "claude-code",
        RECIPES["Claude Code"],
        Call("Bash", "command", WORKS),
        delegate=Call("Agent", "prompt", WORKS | {"subagent_type": "general-purpose"}),
    ),
    Client(
        "codex",
        RECIPES["Codex"],
        Call("exec_command", "cmd"),
        delegate=Call("multi_agent_v1__spawn_agent", "message"),
        wait=Call("multi_agent_v1__wait_agent", "targets"),
        agent_id=r'agent_id\\*": *\\*"([0-9a-f-]+)',
    ),
    Client(
        "opencode",
        RECIPES["opencode"],
        Call("bash", "command", WORKS),
        delegate=Call("task", "prompt", WORKS | {"subagent_type": "general"}),
    ),
    Client(
        "qwen-code",
        RECIPES["qwen-code"],
        Call("run_shell_command", "command", WORKS | {"is_background": False}),
        delegate=Call("agent", "prompt", WORKS | {"subagent_type": "general-purpose"}),
    ),
    Client(
        "mini-swe-agent",
        RECIPES["mini-swe-agent"],
        BASH,
        last="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
    ),
    Client("openhands", RECIPES["OpenHands"], Call("terminal", "command")),
    Client("smolagents", RECIPES["smolagents"], Code(RUN), end=Code("final_answer({!r})")),
    Client("pydantic-ai", RECIPES["pydantic-ai"], BASH),
    Client("langchain", RECIPES["langchain"], BASH),
)
