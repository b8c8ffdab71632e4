"""The commands of `ale_jax.gateway.recording`."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path

from ale_jax.gateway.recording import __doc__ as about
from ale_jax.gateway.recording.exchanges import read
from ale_jax.gateway.recording.player import Player
from ale_jax.gateway.recording.recorder import make_recorder
from ale_jax.gateway.server import served


def main(arguments: list[str]) -> int:
    """Serves until Ctrl-C or SIGTERM. Returns the exit code: of `replay`, 1 if calls are left."""
    options = _parse(arguments)
    player = None
    try:
        if options.command == "record":
            app = make_recorder(options.url, options.file)
        else:
            player = Player(read(options.file))
            app = player.app
        with served(app, options.host, options.port) as url:
            print(f"listens at {url}", flush=True)
            _wait_for_a_signal()
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    left = player.left if player else []
    if left:
        print(f"{len(left)} calls were not made, first {left[0].path}", file=sys.stderr)
    return 1 if left else 0


def _wait_for_a_signal() -> None:
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    stopped.wait()


def _parse(arguments: list[str]) -> argparse.Namespace:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m ale_jax.gateway.recording", description=about, formatter_class=style
    )
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record", help="record what goes through to an API")
    record.add_argument("url", help="of the API, e.g. http://127.0.0.1:8000/v1")
    replay = commands.add_parser("replay", help="answer as a recording has it")
    for each in (record, replay):
        each.add_argument("file", type=Path)
        each.add_argument("--host", default="127.0.0.1")
        each.add_argument("--port", type=int, default=0, help="0: one that is free")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
