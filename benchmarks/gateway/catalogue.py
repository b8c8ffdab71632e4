"""The clients: how each is got, how it is started, and which tool it runs commands with."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Literal

PROGRAMS = Path(__file__).with_name("client_programs")
INSIDE = "/opt/clients"  # where clients are in the sandbox
HOME = "/tmp/home"
NODE = f"{INSIDE}/node"


@dataclasses.dataclass(frozen=True)
class Client:
    """package: of the registry that `source` names. command, env: as in `ExternalAgent`. tool: the
    name of the one that runs a command, which is its `argument`. more: its other arguments. last:
    the command that ends the task; empty: a reply without a call does."""

    name: str
    source: Literal["pypi", "npm"]
    package: str
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    tool: str = "bash"
    argument: str = "command"
    more: tuple[tuple[str, Any], ...] = ()
    last: str = ""

    @property
    def variables(self) -> tuple[tuple[str, str], ...]:
        found = {"HOME": HOME, "PYTHONPATH": f"{INSIDE}/{self.name}/lib"}
        if self.source == "npm":
            found = {"HOME": HOME, "LD_LIBRARY_PATH": f"{NODE}/lib"}
        return (*found.items(), *self.env)


def _program(name: str) -> tuple[str, ...]:
    return ("python3", "-c", (PROGRAMS / f"{name}.py").read_text(), "{instruction}")


OPENCODE = {
    "provider": {
        "gateway": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": "{url}", "apiKey": "{token}"},
            "models": {"policy": {"limit": {"context": 200_000, "output": 8_000}}},
        }
    },
    "small_model": "gateway/policy",
    "autoupdate": False,
    "share": "disabled",
}
LITELLM = ("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # there is no network to get another one
MINI = "python3 -m minisweagent -m openai/policy -y --exit-immediately -o"
QWEN = f"{NODE}/bin/node {INSIDE}/qwen-code/bin/qwen -y --auth-type openai -m policy"
QWEN_AT = ("--openai-base-url", "{url}", "--openai-api-key", "{token}")
CODE = f"{INSIDE}/opencode/bin/opencode run --auto -m gateway/policy"
CLAUDE = f"{INSIDE}/claude-code/lib/node_modules/@anthropic-ai/claude-code/cli-wrapper.cjs"
CODEX = f"{INSIDE}/codex/lib/node_modules/@openai/codex/bin/codex.js"
CODEX_AT = {
    "model": "policy",
    "model_provider": "gateway",
    "model_providers.gateway.name": "gateway",
    "model_providers.gateway.base_url": "{url}",
    "model_providers.gateway.env_key": "OPENAI_API_KEY",
    "model_providers.gateway.wire_api": "responses",
}
CLIENTS = (
    Client("openai", "pypi", "openai", _program("openai_sdk")),
    Client("anthropic", "pypi", "anthropic", _program("anthropic_sdk")),
    Client("litellm", "pypi", "litellm", _program("litellm_sdk"), env=(LITELLM,)),
    Client(
        "mini-swe-agent",
        "pypi",
        "mini-swe-agent",
        (*MINI.split(), f"{HOME}/trajectory.json", "-t", "{instruction}"),
        env=(
            LITELLM,
            ("MSWEA_COST_TRACKING", "ignore_errors"),
            ("MSWEA_CONFIGURED", "true"),
            ("MSWEA_GLOBAL_CONFIG_DIR", HOME),
        ),
        last="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
    ),
    Client("openai-agents", "pypi", "openai-agents", _program("agents_sdk")),
    Client(
        "qwen-code",
        "npm",
        "@qwen-code/qwen-code",
        (*QWEN.split(), *QWEN_AT, "-p", "{instruction}"),
        tool="run_shell_command",
        more=(("is_background", False), ("description", "Works.")),
    ),
    Client(
        "opencode",
        "npm",
        "opencode-ai",
        (*CODE.split(), "{instruction}"),
        env=(
            ("OPENCODE_CONFIG_CONTENT", json.dumps(OPENCODE)),
            ("OPENCODE_DISABLE_MODELS_FETCH", "true"),
            ("OPENCODE_DISABLE_AUTOUPDATE", "true"),
            ("OPENCODE_DISABLE_LSP_DOWNLOAD", "true"),
        ),
        more=(("description", "Works."),),
    ),
    Client(
        "claude-code",
        "npm",
        "@anthropic-ai/claude-code",
        (f"{NODE}/bin/node", CLAUDE, "-p", "{instruction}", "--dangerously-skip-permissions"),
        env=(("IS_SANDBOX", "1"),),  # without which root may not skip permissions
        tool="Bash",
        more=(("description", "Works."),),
    ),
    Client(
        "codex",
        "npm",
        "@openai/codex",
        (
            *(f"{NODE}/bin/node", CODEX, "exec", "--skip-git-repo-check"),
            "--dangerously-bypass-approvals-and-sandbox",  # the sandbox is one
            *(word for name, value in CODEX_AT.items() for word in ("-c", f'{name}="{value}"')),
            "{instruction}",
        ),
        tool="exec_command",
        argument="cmd",
    ),
)
