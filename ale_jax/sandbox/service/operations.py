"""Routes for operators: the pool, health, metrics, and the live page of the fleet.

200: it can be used. 503: it is alive, but cannot be used now. 410: it is no longer alive.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import json
import pathlib
import time
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.pool.api import NodeStatus, SandboxGone, State, Status
from ale_jax.sandbox.pool.pooled_sandbox import WITH_CAUSE
from ale_jax.sandbox.service import protocol
from ale_jax.sandbox.service.bodies import ERRORS, JSON, By, Id, WarmBody, nothing, reply, serves
from ale_jax.sandbox.service.caller import Caller
from ale_jax.sandbox.service.protocol import Refusal, TenantUsage, plain
from ale_jax.sandbox.service.tenants import usages
from ale_jax.sandbox.spec import SandboxSpec

MAX_EVENTS = 1000

pool_router = APIRouter(tags=["operations"])
After = Annotated[int | None, Query(ge=0, description="`next` of the previous answer.")]
Limit = Annotated[int, Query(ge=1, le=MAX_EVENTS, description="Maximum number of events.")]


@serves(pool_router, protocol.WARM)
async def warm(body: WarmBody, by: By) -> Response:
    """Keeps `count` sandboxes of a spec ready on each node, for all tenants. Administrators
    only."""
    by.only_admin("warm")
    await by.pool.warm(SandboxSpec.from_json(body.spec), body.count)
    return nothing()


@serves(pool_router, protocol.NODES)
async def nodes(by: By) -> Response:
    """Lists the nodes of the pool."""
    return reply(await by.pool.nodes())


@serves(pool_router, protocol.STATS)
async def stats(by: By) -> Response:
    """Counts your sandboxes by state, and the slots of all nodes that are alive."""
    states = Counter(status.state for status in await by.statuses())
    alive = [node for node in await by.pool.nodes() if node.alive]
    slots = {name: sum(getattr(n, name) for n in alive) for name in ("slots", "used", "ready")}
    return reply({"sandboxes": states, "nodes": len(alive), **slots})


@serves(pool_router, protocol.USAGE)
async def show_usage(request: Request, by: By) -> Response:
    """What your token uses now, its limits, and what it has used since the service started. An
    administrator gets that of all tokens that have called."""
    return reply(await _usages(request, by))


async def _usages(request: Request, by: Caller) -> list[TenantUsage]:
    accounts = request.app.state.guard.accounts.values()
    mine = [each for each in accounts if by.tenant.admin or each.name == by.tenant.name]
    return [each async for each in usages(by.pool, mine)]


@serves(pool_router, protocol.EVENTS)
async def events(by: By, after: After = None, limit: Limit = 500) -> Response:
    """Lists what happened to your sandboxes: starts, losses, re-creations, ends with their causes,
    denied connections. An administrator gets the events of all sandboxes and of the nodes.

    Without `after`, the latest events; with it, the first ones after that number.
    """
    return reply(await by.events(after, limit))


@pool_router.get("/healthz")
async def healthz() -> Response:
    """The service is alive."""
    return reply({"status": "ok"})


@pool_router.get("/readyz")
async def readyz(request: Request) -> Response:
    """At least one node of the pool is alive; otherwise 503."""
    if not any(node.alive for node in await request.app.state.pool.nodes()):
        raise Refusal(503, "not_ready", "no node of the pool is alive")
    return reply({"status": "ready"})


@pool_router.get("/metrics", response_class=PlainTextResponse)
async def show_metrics(request: Request, by: By) -> Response:
    """Counters and histograms for Prometheus, over all tokens, and the usage of yours; for an
    administrator, of each."""
    statuses, nodes = await by.pool.statuses(), await by.pool.nodes()
    text = request.app.state.metrics.text(statuses, nodes, await _usages(request, by))
    return Response(text, media_type=CONTENT_TYPE_LATEST)


# In a cluster, the pool of the sandbox's node is asked, which does not wait for anything.
NODE_S = 1.0
# A healthy sandbox answers its pool within a tick; after much longer, it counts as lost.
SILENT_S = 0.5

health_router = APIRouter(tags=["operations"], responses=ERRORS)
Node = Annotated[str, Path(description="The node's name.", max_length=512)]


@health_router.get("/v1/sandboxes/{id}/health", responses={503: {"description": "Not ready."}})
async def sandbox_health(id: Id, by: By) -> Response:
    """The sandbox as its pool last saw it. 200: it accepts commands; 503: it does not yet, or does
    not answer; 410: it has ended. Does not count as use."""
    try:
        async with asyncio.timeout(NODE_S):
            status = await by.status(id)
    except SandboxGone:
        raise
    except (SandboxError, TimeoutError) as error:
        raise _not_now(f"the node of sandbox {id!r} does not answer") from error
    return reply(_checked(status))


@health_router.get("/v1/nodes/{node:path}/health", responses={503: {"description": "Not ready."}})
async def node_health(node: Node, by: By) -> Response:
    """200: the node accepts another sandbox; 503: it is full; 410: it is lost."""
    for each in await by.pool.nodes():
        if each.node == node:
            return reply(_checked_node(each))
    raise Refusal(404, "not_found", f"there is no node {node!r:.140}", "list the nodes")


def _checked(status: Status) -> dict[str, Any]:
    if status.cause is not None:
        raise SandboxGone(status.id, status.cause)
    if status.state not in (State.READY, State.RUNNING):
        raise _not_now(f"sandbox {status.id!r} is {status.state}")
    if status.silent_seconds >= SILENT_S:
        raise _not_now(f"sandbox {status.id!r} has not answered for {status.silent_seconds:g} s")
    return {"state": status.state, "generation": status.generation, "busy": status.busy}


def _checked_node(node: NodeStatus) -> dict[str, Any]:
    if not node.alive:
        raise Refusal(410, "node_lost", f"node {node.node!r} is lost")
    if node.used - node.ready >= node.slots:
        raise _not_now(f"all {node.slots} slots of node {node.node!r} are taken")
    return {"slots": node.slots, "used": node.used, "ready": node.ready}


def _not_now(message: str) -> Refusal:
    return Refusal(503, "not_ready", message, "try again later")


ENDED_SHOWN = 200
MAX_LABELS, MAX_CHARS = 8, 120
UNKNOWN = dict.fromkeys(("processes", "disk_bytes", "disk_limit_bytes", "memory_bytes"))


def sandbox_rows(statuses: Sequence[Status]) -> dict[str, Any]:
    """rows: all live sandboxes, and the ENDED_SHOWN that ended last. states: number of sandboxes in
    each state, including those that are not shown."""
    ended = [status for status in statuses if status.cause is not None]
    ended.sort(key=_since, reverse=True)
    living = [status for status in statuses if status.cause is None]
    states = Counter(str(status.state) for status in statuses)
    return {"states": states, "rows": [_row(each) for each in (*living, *ended[:ENDED_SHOWN])]}


def _row(status: Status) -> dict[str, Any]:
    stats, spec = status.stats, status.spec
    usage = UNKNOWN if stats is None else {name: getattr(stats, name) for name in UNKNOWN}
    labels = list(status.labels.items())[:MAX_LABELS]
    return {
        "id": status.id,
        "node": status.node,
        "state": status.state,
        "cause": status.cause,
        "why": _why(status),
        "generation": status.generation,
        "busy": status.busy,
        "since": status.started_at if status.cause is None else _since(status),
        "silent_seconds": status.silent_seconds,
        "image": spec.image,
        "labels": {name[:MAX_CHARS]: text[:MAX_CHARS] for name, text in labels},
        "cpu_percent": status.cpu_percent,
        "memory_limit_bytes": spec.memory_mb << 20,
        "processes_limit": spec.pids,
        **usage,
    }


def _since(status: Status) -> float:
    return status.history[-1].at if status.history else status.started_at


def _why(status: Status) -> str:
    """Returns why the sandbox ended; for a live one, why its previous generation did."""
    for change in reversed(status.history):
        if change.state in WITH_CAUSE and change.detail:
            return change.detail[: 2 * MAX_CHARS]
    return ""


PARTS = pathlib.Path(__file__).with_name("fleet_page")
SCRIPTS = ("format.js", "keyed_list.js", "service.js", "nodes.js", "sandboxes.js", "events.js")
EVENTS_SHOWN = 200

fleet_router = APIRouter()


@fleet_router.get("/v1/fleet", tags=["operations"])
async def show_fleet(by: By, after: After = None) -> Response:
    """Returns the nodes, your sandboxes and the events after that number, as `/fleet` shows them:
    all live sandboxes and those that ended last, each with what fits in a row."""
    answer = {
        "at": time.time(),
        "nodes": plain(await by.pool.nodes()),
        "sandboxes": sandbox_rows(await by.statuses()),
        "events": plain(await by.events(after, EVENTS_SHOWN)),
    }
    return Response(json.dumps(answer), media_type=JSON)


@fleet_router.get("/fleet", include_in_schema=False)
async def show_page() -> HTMLResponse:
    page, policy = _page()
    headers = {
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }
    return HTMLResponse(page, headers=headers)


@functools.cache
def _page() -> tuple[str, str]:
    """Returns the page and its policy: only its own style and script, and this service's answers.

    Trusted Types prevent the script from turning text into HTML, whoever wrote the text.
    """
    style = (PARTS / "fleet.css").read_text()
    script = "\n".join((PARTS / name).read_text() for name in (*SCRIPTS, "fleet.js"))
    page = (PARTS / "fleet.html").read_text().replace("/* style */", style, 1)
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)};"
        " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return page.replace("/* script */", script, 1), policy


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
