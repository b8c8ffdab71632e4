"""What a user can choose. Frozen dataclasses, which reject what is invalid by name."""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ale_jax.agent.assistant.permissions import MODES, Rule

KEY, CONFIG = "OPENAI_API_KEY", "ALE_AGENT_CONFIG"
# The config may hold keys of MCP servers.
LEFT_OUT = (KEY, "ANTHROPIC_API_KEY", CONFIG)
MAX_CONFIG_BYTES = 1 << 20
MAX_OUTPUT_CHARS = 1 << 18  # so that it fits in a line of the log
SERVER_NAME = re.compile(r"[A-Za-z0-9-]{1,32}")


@dataclasses.dataclass(frozen=True)
class Features:
    """Each can be switched off. A tool that is off does not appear in the prompt."""

    bash: bool = True
    read: bool = True
    write: bool = True
    edit: bool = True
    search: bool = True
    task: bool = True
    finish: bool = True
    agents_md: bool = True
    compaction: bool = True
    move_outputs: bool = True


@dataclasses.dataclass(frozen=True)
class Limits:
    """How much an agent may do and keep. turns: of a request, calls of the model. context_tokens:
    what the model can read. compact_at: share of it from which room is made. output_chars: of a
    tool's output, as the model reads it. bash_seconds: until a command is killed."""

    turns: int = 100
    context_tokens: int = 128_000
    compact_at: float = 0.8
    output_chars: int = 16_000
    bash_seconds: float = 120.0

    def __post_init__(self) -> None:
        for name, least in (("turns", 1), ("context_tokens", 256), ("output_chars", 100)):
            if getattr(self, name) < least:
                raise ValueError(f"limits.{name} {getattr(self, name)} must be at least {least}")
        if self.output_chars > MAX_OUTPUT_CHARS:
            raise ValueError(
                f"limits.output_chars {self.output_chars} must be at most {MAX_OUTPUT_CHARS}"
            )
        if not 0 < self.compact_at <= 1:
            raise ValueError(f"limits.compact_at {self.compact_at} must be above 0 and at most 1")
        if self.bash_seconds <= 0:
            raise ValueError(f"limits.bash_seconds {self.bash_seconds} must be more than 0")


@dataclasses.dataclass(frozen=True)
class Permissions:
    """What the agent may do without being asked about. mode: see MODES. allow, deny: rules such as
    "bash(git diff *)" or "mcp__files__*"."""

    mode: str = "ask"
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(
                f"permissions.mode {self.mode!r:.80} must be one of {', '.join(MODES)}"
            )
        for rule in (*self.allow, *self.deny):
            Rule.parse(rule)


@dataclasses.dataclass(frozen=True)
class McpServer:
    """A server of tools: a program, by its command and environment, that is spoken to over its
    standard input and output, or one that is reached over HTTP, by its URL and further headers."""

    name: str
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    url: str = ""
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    seconds: float = 60.0

    def __post_init__(self) -> None:
        # Without underscores, so that mcp__SERVER__TOOL is read in one way only.
        if not SERVER_NAME.fullmatch(self.name):
            raise ValueError(
                f"mcp_servers.name {self.name!r:.80} must have 1 to 32 letters, digits and dashes"
            )
        if bool(self.command) == bool(self.url):
            raise ValueError(f"mcp_servers of {self.name} must have a command or a url")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError(
                f"mcp_servers.url {self.url!r:.80} must begin with http:// or https://"
            )
        if self.seconds <= 0:
            raise ValueError(f"mcp_servers.seconds {self.seconds} must be more than 0")


@dataclasses.dataclass(frozen=True)
class Settings:
    """All settings of an agent. max_tokens, temperature: of a reply; None: the endpoint's own.
    how_to_work: the beginning of the system prompt; empty: our own text."""

    base_url: str = ""
    model: str = ""
    max_tokens: int | None = None
    temperature: float | None = None
    features: Features = Features()
    limits: Limits = Limits()
    permissions: Permissions = Permissions()
    mcp_servers: tuple[McpServer, ...] = ()
    how_to_work: str = ""

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens {self.max_tokens} must be at least 1")
        if self.temperature is not None and not 0 <= self.temperature <= 10:
            raise ValueError(f"temperature {self.temperature} must be from 0 to 10")


def read_settings(path: Path) -> Settings:
    """Reads a config file. ValueError with the file's name and the field for what is no setting."""
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise ValueError(f"{path}: longer than {MAX_CONFIG_BYTES} bytes")
    return parse_settings(path.read_text(), str(path))


def parse_settings(text: str, source: str) -> Settings:
    """Settings in TOML. source: named in the ValueError for what is none."""
    try:
        return _made(Settings, tomllib.loads(text), "")
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


def _made(kind: Any, value: Any, field: str) -> Any:
    """`value`, of TOML, as an instance of `kind`."""
    if isinstance(kind, types.UnionType):
        kind = typing.get_args(kind)[0]  # or None, which is what is left out
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise ValueError(f"{field} {value!r:.80} must be a table")
        hints = typing.get_type_hints(kind)
        for name in value.keys() - hints.keys():
            raise ValueError(f"{field}{name} is no setting; there are: {', '.join(hints)}")
        made = {name: _made(hints[name], each, f"{field}{name}.") for name, each in value.items()}
        try:
            return kind(**made)
        except TypeError as error:
            raise ValueError(f"{field or 'the file'}: {error}") from error
    origin, label = typing.get_origin(kind), field.removesuffix(".")
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{label} {value!r:.80} must be a list")
        return tuple(_made(typing.get_args(kind)[0], each, field) for each in value)
    if origin is not None:
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            raise ValueError(f"{label} {value!r:.80} must be a table of strings")
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"{label} {value!r:.80} must be of type {kind.__name__}")
    return value


def environment_of_tools() -> dict[str, str]:
    """Returns the environment that commands of the model's get: ours, without LEFT_OUT and any
    other variable whose value is the key, so that a command does not print the key or pass it on by
    accident. This stops no command that looks for the key: it runs as our user, and can read
    /proc/PID/environ of this process and of those that started it."""
    key = os.environ.get(KEY) or None  # an empty key must not match each empty variable
    return {
        name: value for name, value in os.environ.items() if name not in LEFT_OUT and value != key
    }
