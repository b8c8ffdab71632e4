"""`ale-sandbox`: does what the command line says. An error is one line, with the remedy."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.cli import copying, tables
from ale_jax.sandbox.cli.parser import TOKEN, make_parser, spec_of
from ale_jax.sandbox.cli.shell import shell
from ale_jax.sandbox.sdk.client import SandboxClient

FAILED = 1
FAILED_EXEC = 125  # as with docker: 1 could be the command's own
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: of `exec` and `shell` the command's own, or FAILED_EXEC."""
    arguments = make_parser().parse_args(argv)
    try:
        if arguments.command in LOCAL:
            return LOCAL[arguments.command](arguments)
        with SandboxClient(arguments.url, os.environ.get(TOKEN)) as client:
            return REMOTE[arguments.command](client, arguments)
    except (SandboxError, ValueError, OSError) as error:
        text = " ".join(str(error).split())
        print(f"ale-sandbox {arguments.command}: {tables.printable(text)}", file=sys.stderr)
        return FAILED_EXEC if arguments.command in ("exec", "shell") else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _start(client: SandboxClient, arguments: argparse.Namespace) -> int:
    box = client.start(
        spec_of(arguments),
        snapshot=arguments.snapshot,
        idle_seconds=arguments.idle,
        deadline_seconds=arguments.deadline,
    )
    print(box.id)
    return 0


def _exec(client: SandboxClient, arguments: argparse.Namespace) -> int:
    words = arguments.words
    argv = words[0] if len(words) == 1 else words
    stdin = sys.stdin.buffer.read() if arguments.stdin else b""
    box = client.attach(arguments.id)
    with box.spawn(argv, timeout=arguments.timeout, stdin=stdin, cwd=arguments.cwd) as output:
        for kind, data in output:
            stream = sys.stdout if kind == "stdout" else sys.stderr
            stream.buffer.write(data)
            stream.buffer.flush()
    return output.exit_code


def _shell(arguments: argparse.Namespace) -> int:
    return shell(arguments.url, os.environ.get(TOKEN), arguments.id, arguments.run)


def _copy(client: SandboxClient, arguments: argparse.Namespace) -> int:
    copying.copy(client, arguments.source, arguments.target)
    return 0


def _list(client: SandboxClient, arguments: argparse.Namespace) -> int:
    tables.sandboxes(client.statuses())
    return 0


def _stats(client: SandboxClient, arguments: argparse.Namespace) -> int:
    tables.nodes(client.nodes())
    states = client.stats()["sandboxes"].items()
    tables.show("", ("sandboxes", "count"), states)
    return 0


def _snapshot(client: SandboxClient, arguments: argparse.Namespace) -> int:
    print(client.attach(arguments.id).snapshot().id)
    return 0


def _remove(client: SandboxClient, arguments: argparse.Namespace) -> int:
    ids = arguments.ids
    if arguments.all:
        ids = [status.id for status in client.statuses() if status.cause is None]
    elif not ids:
        raise ValueError("name the sandboxes, or say --all")
    for id in ids:
        client.attach(id).close()
    return 0


# What the next three load takes longer than most commands do, which need none of it.
def _serve(arguments: argparse.Namespace) -> int:
    from ale_jax.sandbox.cli.serve import run_service

    return run_service(arguments)


def _images(arguments: argparse.Namespace) -> int:
    from ale_jax.sandbox.cli.images import images

    return images(arguments)


def _doctor(arguments: argparse.Namespace) -> int:
    from ale_jax.sandbox.cli.doctor import doctor

    return doctor(spec_of(arguments), arguments.url, os.environ.get(TOKEN))


LOCAL: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "serve": _serve,
    "shell": _shell,
    "images": _images,
    "doctor": _doctor,
}
REMOTE: Mapping[str, Callable[[SandboxClient, argparse.Namespace], int]] = {
    "start": _start,
    "exec": _exec,
    "cp": _copy,
    "ps": _list,
    "stats": _stats,
    "snapshot": _snapshot,
    "rm": _remove,
}
