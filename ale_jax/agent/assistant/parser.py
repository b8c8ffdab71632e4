"""The command line: `ale-agent COMMAND ...`, and the settings that it and the config file give."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ale_jax.agent.assistant.endpoint import EndpointSettings
from ale_jax.agent.assistant.permissions import MODES
from ale_jax.agent.assistant.sessions import Sessions
from ale_jax.agent.assistant.settings import CONFIG, KEY, Settings, parse_settings, read_settings

URL, MODEL = "OPENAI_BASE_URL", "OPENAI_MODEL"
RUN, SESSIONS, EXPORT, ACP = COMMANDS = ("run", "sessions", "export", "acp")
OUTPUTS = ("terminal", "text", "stream-json")
DESCRIPTION = "An agent that works in a directory, against any OpenAI-compatible endpoint."
EPILOG = (
    f"The environment variable {KEY} holds the endpoint's key; {URL} and {MODEL} are defaults, and "
    f"{CONFIG} may hold settings in TOML, in place of a file."
)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Words that begin with no command are a request: a person types `ale-agent REQUEST`."""
    if not words or words[0] not in (*COMMANDS, "-h", "--help"):
        words = (RUN, *words)
    arguments = make_parser().parse_args(words)
    if arguments.command == RUN and arguments.output is None:
        arguments.output = "text" if arguments.print else "terminal"
    return arguments


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("ale-agent", description=DESCRIPTION, epilog=EPILOG)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser(RUN, help="work on a request, or talk; may be left out")
    _add_session_options(run)
    run.add_argument("request", nargs="?", help="none: what is piped, or a talk; -: what is piped")
    run.add_argument(
        *("-p", "--print"),
        action="store_true",
        help="only print the answer; what is piped belongs to the request",
    )
    run.add_argument("--resume", metavar="SESSION", help="continue it; newest: the last one")
    run.add_argument("--fork", metavar="SESSION", help="a new session that begins as this one")
    run.add_argument("--output", choices=OUTPUTS, help="text: only the answer")
    run.add_argument("--cwd", help="working directory (., or that of the session)")
    listing = commands.add_parser(SESSIONS, help="list the sessions")
    _add_state(listing)
    export = commands.add_parser(EXPORT, help="write a session as a trajectory (ATIF 1.8)")
    _add_state(export)
    export.add_argument("session")
    export.add_argument("--out", type=Path, required=True, metavar="FILE")
    acp = commands.add_parser(ACP, help="serve an editor over standard input and output (ACP)")
    _add_session_options(acp)
    return parser


def sessions_of(arguments: argparse.Namespace) -> Sessions:
    return Sessions(arguments.state.expanduser() / "sessions")


def settings_of(arguments: argparse.Namespace) -> tuple[Settings, EndpointSettings]:
    """Returns the settings of a command. What the command line says goes first, then the
    environment, then the file. ValueError for what is not valid."""
    settings = _stored_settings(arguments.config)
    changes: dict[str, Any] = {}
    if arguments.mode:
        permissions = dataclasses.replace(settings.permissions, mode=arguments.mode)
        changes["permissions"] = permissions
    if arguments.max_turns is not None:
        changes["limits"] = dataclasses.replace(settings.limits, turns=arguments.max_turns)
    settings = dataclasses.replace(settings, **changes)
    return settings, EndpointSettings(
        base_url=arguments.base_url or os.environ.get(URL, "") or settings.base_url,
        model=arguments.model or os.environ.get(MODEL, "") or settings.model,
        key=os.environ.get(KEY, ""),
        max_tokens=settings.max_tokens,
        temperature=settings.temperature,
    )


def _stored_settings(config: Path) -> Settings:
    # Only what the user gives: a file in a working directory could run its author's commands.
    path, is_named = config.expanduser(), config != _default_config()
    if not is_named and (text := os.environ.get(CONFIG)):
        return parse_settings(text, CONFIG)
    return read_settings(path) if is_named or path.exists() else Settings()


def _add_session_options(parser: argparse.ArgumentParser) -> None:
    _add_state(parser)
    parser.add_argument("--base-url", metavar="URL", help="such as http://127.0.0.1:8000/v1")
    parser.add_argument("--model")
    parser.add_argument("--mode", choices=MODES, help="who permits calls of tools (ask)")
    parser.add_argument("--max-turns", type=int, metavar="N", help="calls of the model (100)")
    config = _default_config()
    parser.add_argument("--config", type=Path, default=config, help=f"settings ({config})")


def _add_state(parser: argparse.ArgumentParser) -> None:
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state") / "ale-agent"
    parser.add_argument("--state", type=Path, default=state, help=f"keeps sessions ({state})")


def _default_config() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config") / "ale-agent" / "config.toml"
