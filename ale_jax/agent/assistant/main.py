"""`ale-agent`: runs one command of the command line. Errors are one line with a remedy."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence

from ale_jax.agent.assistant.clipping import printable
from ale_jax.agent.assistant.endpoint import EndpointError
from ale_jax.agent.assistant.parser import make_parser, sessions_of

FAILED, INTERRUPTED = 1, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    arguments = make_parser().parse_args(argv)
    try:
        return COMMANDS[arguments.command](arguments)
    except (ValueError, OSError, EndpointError) as error:
        told = printable(" ".join(str(error).split()))
        print(f"ale-agent {arguments.command}: {told}", file=sys.stderr)
        return FAILED
    except (KeyboardInterrupt, asyncio.CancelledError):
        return INTERRUPTED


def _run(arguments: argparse.Namespace) -> int:
    from ale_jax.agent.assistant.running import run

    return asyncio.run(run(arguments))


def _list(arguments: argparse.Namespace) -> int:
    from ale_jax.agent.assistant.output.session_list import show_sessions

    show_sessions(sessions_of(arguments).list())
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from ale_jax.agent.assistant.output.atif_export import export

    export(sessions_of(arguments).events(arguments.session), arguments.out)
    return 0


def _acp(arguments: argparse.Namespace) -> int:
    from ale_jax.agent.assistant.acp_server import serve

    return asyncio.run(serve(arguments))


COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "run": _run,
    "sessions": _list,
    "export": _export,
    "acp": _acp,
}


if __name__ == "__main__":
    sys.exit(main())
