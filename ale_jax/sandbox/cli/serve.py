"""`ale-sandbox serve`: the service over this machine's pool, until SIGINT or SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Callable, Sequence

from fastapi import APIRouter
from rich.console import Console

from ale_jax.sandbox.cli.parser import spec_of
from ale_jax.sandbox.pool.exit import ManagedPool, closed_at_exit
from ale_jax.sandbox.pool.node_pool import NodePool
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.service import rock
from ale_jax.sandbox.service.app import create_app
from ale_jax.sandbox.service.server import bind, serve, url_of
from ale_jax.sandbox.service.settings import ServiceSettings
from ale_jax.sandbox.service.tokens import read_tokens
from ale_jax.sandbox.spec import SandboxSpec

# Makes a pool for the runtime, the spec and the options that are asked for; and says where it is.
MakePool = Callable[[str, SandboxSpec, PoolOptions], tuple[ManagedPool, str]]


def pool_here(
    runtime_name: str, spec: SandboxSpec, options: PoolOptions
) -> tuple[ManagedPool, str]:
    """Of this machine. Errors: ValueError, SandboxStartError."""
    runtime = pick_runtime(runtime_name, spec)
    return NodePool(runtime, options), runtime.name


def run_service(
    arguments: argparse.Namespace,
    fronts: Sequence[APIRouter] = (),
    make_pool: MakePool = pool_here,
) -> int:
    """fronts: further routes, such as `gem.front` of the worlds that the caller knows.

    Errors: ValueError, SandboxStartError.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    routers = [*fronts, *([rock.front()] if arguments.rock else [])]
    try:
        asyncio.run(_serve(arguments, routers, make_pool))
    except SystemExit:
        return 0  # SIGTERM is how a service is told to end
    return 0


async def _serve(
    arguments: argparse.Namespace, routers: Sequence[APIRouter], make_pool: MakePool
) -> None:
    settings = ServiceSettings(host=arguments.host, port=arguments.port)
    tokens, spec = read_tokens(arguments.token_file), spec_of(arguments)
    options = PoolOptions(slots=arguments.slots, snapshot_directory=arguments.snapshots)
    pool, where = make_pool(arguments.runtime, spec, options)
    app = create_app(pool, settings, tokens, routers)
    with bind(settings) as listener:
        async with closed_at_exit(pool):
            if arguments.warm:
                await pool.warm(spec, arguments.warm)
            _announce(url_of(listener), where, bool(tokens))
            await serve(app, listener)


def _announce(url: str, where: str, asks: bool) -> None:
    who = "tokens are asked for" if asks else "no token is asked for"
    pages = f"live at {url}/fleet, documentation at {url}/docs"
    Console().print(f"{url} ({where}; {who}; {pages})", soft_wrap=True)
