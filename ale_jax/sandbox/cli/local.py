"""The commands of `ale-sandbox` that work on the local machine: `serve`, `stop-node`, `images` and
`doctor`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fastapi import APIRouter
from rich.console import Console

from ale_jax.sandbox import bubblewrap, cgroups, docker_runtime
from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.cli import tables
from ale_jax.sandbox.cli.parser import Connection, spec_of
from ale_jax.sandbox.datasets import Datasets
from ale_jax.sandbox.disk import roots
from ale_jax.sandbox.disk.images import ImageFiles
from ale_jax.sandbox.docker_runtime import DockerRuntime
from ale_jax.sandbox.egress.uplink import Uplink
from ale_jax.sandbox.hub.ensure import MISSING, NEVER
from ale_jax.sandbox.hub.hub import Hub
from ale_jax.sandbox.hub.store import RECIPES_VARIABLE
from ale_jax.sandbox.node.process import StateDirectory, own
from ale_jax.sandbox.pool.api import SandboxPool
from ale_jax.sandbox.pool.machines import raise_file_limit
from ale_jax.sandbox.pool.node_pool import NodePool
from ale_jax.sandbox.pool.options import ManagedPool, PoolOptions, closed_at_exit
from ale_jax.sandbox.runtime import Picked, pick_runtime
from ale_jax.sandbox.sdk.client import SandboxClient
from ale_jax.sandbox.service import rock
from ale_jax.sandbox.service.access import ServiceSettings, read_tokens
from ale_jax.sandbox.service.app import create_app, refuse_openness
from ale_jax.sandbox.service.protocol import Refusal
from ale_jax.sandbox.service.server import bind, serve, tls_of, url_of
from ale_jax.sandbox.spec import SandboxSpec

# As `pick_runtime`, on the machine whose sandboxes it starts.
MakeRuntime = Callable[[], Picked]
# Creates a pool; also returns a label of where it runs.
MakePool = Callable[[MakeRuntime, PoolOptions], tuple[ManagedPool, str]]


def pool_here(make_runtime: MakeRuntime, options: PoolOptions) -> tuple[ManagedPool, str]:
    """Creates a pool on this machine. Errors: ValueError, SandboxStartError."""
    runtime = make_runtime()
    return NodePool(runtime, options), runtime.name


def run_service(
    arguments: argparse.Namespace,
    fronts: Sequence[APIRouter] = (),
    make_pool: MakePool = pool_here,
) -> int:
    """Serves sandboxes until SIGTERM. fronts: further routes, such as `gem.front` for the caller's
    worlds.

    Errors: ValueError, SandboxStartError.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    _name_recipes(arguments)
    routers = [*fronts, *([rock.front()] if arguments.rock else [])]
    try:
        if arguments.owner_fd is not None:
            return _own(arguments, make_pool)
        asyncio.run(_serve(arguments, routers, make_pool))
    except SystemExit:
        return 0  # the normal end of a service, on SIGTERM
    return 0


def owns_sandboxes(arguments: argparse.Namespace) -> bool:
    """Whether this process holds the pool, rather than being a front end of one that does."""
    return not arguments.state or arguments.owner_fd is not None


async def _serve(
    arguments: argparse.Namespace, routers: Sequence[APIRouter], make_pool: MakePool
) -> None:
    settings = ServiceSettings(
        arguments.host, arguments.port, arguments.tls_cert, arguments.tls_key
    )
    tokens, spec = read_tokens(arguments.token_file), spec_of(arguments)
    refuse_openness(settings, tokens)
    tls = tls_of(settings)
    raise_file_limit()
    with bind(settings) as listener:
        if arguments.state:
            pool = await StateDirectory(arguments.state).find_or_start(_asked(arguments))
            where = pool.label
        else:
            pool, where = make_pool(_runtime(arguments, spec), _options(arguments))
        app = create_app(pool, settings, tokens, routers)
        async with closed_at_exit(pool):
            if arguments.warm:
                await pool.warm(spec, arguments.warm)
            _announce(url_of(listener, tls), where, bool(tokens))
            try:
                await serve(app, listener, tls)
            finally:
                if arguments.state:
                    await _farewell(pool, arguments.state)


def _own(arguments: argparse.Namespace, make_pool: MakePool) -> int:
    """Holds the pool for services with the same --state."""
    os.set_inheritable(arguments.owner_fd, False)
    state, spec = StateDirectory(arguments.state), spec_of(arguments)
    with state.owned():
        try:
            pool, label = make_pool(_runtime(arguments, spec), _options(arguments))
            asyncio.run(own(pool, label, state, _asked(arguments), arguments.owner_fd))
        except (SandboxError, ValueError) as error:
            os.write(arguments.owner_fd, str(error).encode())
            return 1
    return 0


def _runtime(arguments: argparse.Namespace, spec: SandboxSpec) -> MakeRuntime:
    uplink = Uplink(tuple(arguments.uplink_network), arguments.uplink_proxy)
    datasets = Datasets.parse(arguments.dataset)
    return functools.partial(pick_runtime, arguments.runtime, spec, uplink, datasets)


def _options(arguments: argparse.Namespace) -> PoolOptions:
    return PoolOptions(
        slots=arguments.slots,
        memory_mb=arguments.memory_mb,
        cpus=arguments.cpus,
        snapshot_directory=arguments.snapshots,
    )


def _asked(arguments: argparse.Namespace) -> dict[str, Any]:
    names = ("runtime", "slots", "memory_mb", "cpus", "snapshots")
    around = ("uplink_network", "uplink_proxy", "dataset")
    recipes = os.environ.get(RECIPES_VARIABLE, "")
    return {name: getattr(arguments, name) for name in (*names, *around)} | {"recipes": recipes}


async def _farewell(pool: SandboxPool, state: str) -> None:
    """Nothing may stay behind silently."""
    with contextlib.suppress(Refusal):  # the owner is gone, and its sandboxes with it
        count = sum(status.cause is None for status in await pool.statuses())
        text = f"{count} sandboxes stay; to end them, type: ale-sandbox stop-node {state}"
        Console(stderr=True).print(text, soft_wrap=True)


def stop_node(path: str) -> int:
    """Ends the process that owns the sandboxes of a state directory. Errors: SandboxError."""
    ended = asyncio.run(StateDirectory(path).end())
    print("its sandboxes have ended" if ended else f"no process owns sandboxes of {path}")
    return 0


def _announce(url: str, where: str, asks: bool) -> None:
    who = "token required" if asks else "no token required"
    pages = f"live at {url}/fleet, documentation at {url}/docs"
    Console().print(f"{url} ({where}; {who}; {pages})", soft_wrap=True)


def images(arguments: argparse.Namespace) -> int:
    """Runs `ale-sandbox images`. Errors: SandboxStartError, ValueError."""
    _name_recipes(arguments)
    return ACTIONS[arguments.action or "list"](Hub(), arguments)


def _name_recipes(arguments: argparse.Namespace) -> None:
    """For every runtime of this process, and of those that it starts."""
    if "recipes" in arguments:
        os.environ[RECIPES_VARIABLE] = os.path.abspath(arguments.recipes)


def _list(hub: Hub, arguments: argparse.Namespace) -> int:
    tables.images(hub.list_images())
    return 0


def _build(hub: Hub, arguments: argparse.Namespace) -> int:
    outcomes = hub.ensure_all(arguments.names, MISSING if arguments.pull else NEVER)
    rows = [
        (o.name, f"{o.seconds:.1f} s", o.manifest.reference if o.manifest else o.trouble)
        for o in outcomes
    ]
    tables.show("", ("image", "took", ""), rows)
    return 1 if any(outcome.trouble for outcome in outcomes) else 0


def _try(hub: Hub, arguments: argparse.Namespace) -> int:
    runtime = DockerRuntime(SandboxSpec(image=arguments.name))
    verdict = hub.validate(arguments.name, lambda spec: runtime.start(spec, {}), runtime.name)
    print(f"{arguments.name}: {verdict.detail}")
    return 0 if verdict.ok else 1


def _remove(hub: Hub, arguments: argparse.Namespace) -> int:
    for name in arguments.names:
        print("\n".join(hub.remove(name)))
    return 0


def _prune(hub: Hub, arguments: argparse.Namespace) -> int:
    pruned = hub.prune(arguments.keep)
    rows = [(name, "removed") for name in pruned.removed]
    rows += [(name, "in use") for name in pruned.in_use]
    if roots.unavailable() is None:
        unpacked = ImageFiles(roots.directory()).prune()
        rows += [(name, "its unpacked files were removed") for name in unpacked]
    tables.show("", ("image", ""), rows)
    return 0


ACTIONS: Mapping[str, Callable[[Hub, argparse.Namespace], int]] = {
    "list": _list,
    "build": _build,
    "try": _try,
    "rm": _remove,
    "prune": _prune,
}


@dataclasses.dataclass(frozen=True)
class Finding:
    """A check of `doctor`. trouble: empty if it works; otherwise why not, with the remedy."""

    what: str
    trouble: str


def doctor(spec: SandboxSpec, service: Connection) -> int:
    """Shows the findings; returns 0 if a runtime can start `spec`, otherwise 1."""
    runtimes = list(_runtimes(spec))
    disk = Finding("roots on disk in bubblewrap", roots.unavailable() or "")
    findings = [*runtimes, _limits(), disk, _service(service)]
    rows = [("works" if not f.trouble else "no", f.what, f.trouble) for f in findings]
    tables.show("", ("", "", ""), rows)
    return 0 if any(not each.trouble for each in runtimes) else 1


def _runtimes(spec: SandboxSpec) -> Iterator[Finding]:
    yield Finding(f"docker, image {spec.image}", docker_runtime.probe(spec) or "")
    yield Finding("bubblewrap", bubblewrap.probe(spec) or "")


def _limits() -> Finding:
    what = "control groups for bubblewrap"
    try:
        cgroups.find()
    except cgroups.CgroupsUnavailable as error:
        return Finding(what, f"{error}; without them, the runner itself limits memory")
    return Finding(what, "")


def _service(service: Connection) -> Finding:
    what = f"the service at {service['url']}"
    try:
        with SandboxClient(**service) as client:
            client.nodes()
    except (SandboxError, ValueError, PermissionError) as error:
        return Finding(what, str(error))
    return Finding(what, "")
