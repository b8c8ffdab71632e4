"""Serves the sandboxes of all nodes of a Ray cluster over HTTP, until SIGINT or SIGTERM.

python -m ale_jax.system.fleet.serve --address=auto
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from collections.abc import Sequence

from ray.exceptions import RayError

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.cli.local import MakeRuntime, owns_sandboxes, run_service
from ale_jax.sandbox.cli.main import FAILED, INTERRUPTED
from ale_jax.sandbox.cli.parser import add_serve_options
from ale_jax.sandbox.cli.tables import printable
from ale_jax.sandbox.pool.events import log_event
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.system.actors.cluster import ray_cluster
from ale_jax.system.fleet.fleet import Fleet

PROGRAM = "python -m ale_jax.system.fleet.serve"
ADDRESS = "HOST:PORT of the cluster's head; auto: of the cluster that this machine is part of"


def main(argv: Sequence[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    try:
        with contextlib.ExitStack() as cluster:
            if owns_sandboxes(arguments):  # a front end of another process need not join
                cluster.enter_context(ray_cluster(actors=0, address=arguments.address))
            return run_service(arguments, make_pool=fleet)
    except (SandboxError, ValueError, OSError, RayError) as error:
        print(f"serve: {printable(' '.join(str(error).split()))}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(PROGRAM, description=__doc__.partition("\n")[0])
    parser.add_argument("--address", default="auto", help=ADDRESS)
    add_serve_options(parser)
    return parser


def fleet(make_runtime: MakeRuntime, options: PoolOptions) -> tuple[Fleet, str]:
    """Returns the fleet of the cluster that this process has joined. Each node picks its own
    runtime."""
    # So that joined and lost nodes are logged.
    logging.getLogger(log_event.__module__).setLevel(logging.INFO)
    return Fleet(make_runtime, options), "all Ray nodes"


if __name__ == "__main__":
    sys.exit(main())
