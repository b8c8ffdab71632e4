"""Routes: the pool, and how the service does."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import PlainTextResponse

from ale_jax.sandbox.pool.api import NodeStatus
from ale_jax.sandbox.service import metrics
from ale_jax.sandbox.service.bodies import WarmBody
from ale_jax.sandbox.service.errors import Refusal
from ale_jax.sandbox.service.records import EventsAnswer
from ale_jax.sandbox.service.replies import By, nothing, reply
from ale_jax.sandbox.spec import SandboxSpec

MAX_EVENTS = 1000

router = APIRouter(tags=["operations"])
After = Annotated[int | None, Query(ge=0, description="`next` of the answer before.")]
Limit = Annotated[int, Query(ge=1, le=MAX_EVENTS, description="No more than so many.")]


@router.put("/v1/warm", status_code=204)
async def warm(body: WarmBody, by: By) -> Response:
    """Keeps so many of them ready on each node, for whoever starts one. Administrators only."""
    by.only_admin("warm")
    await by.pool.warm(SandboxSpec.from_json(body.spec), body.count)
    return nothing()


@router.get("/v1/nodes", response_model=list[NodeStatus])
async def nodes(by: By) -> Response:
    """The machines of the pool."""
    return reply(await by.pool.nodes())


@router.get("/v1/stats")
async def stats(by: By) -> Response:
    """Your sandboxes by state, and the slots of the nodes that are alive."""
    states = Counter(status.state for status in await by.statuses())
    alive = [node for node in await by.pool.nodes() if node.alive]
    slots = {name: sum(getattr(n, name) for n in alive) for name in ("slots", "used", "ready")}
    return reply({"sandboxes": states, "nodes": len(alive), **slots})


@router.get("/v1/events", response_model=EventsAnswer)
async def events(by: By, after: After = None, limit: Limit = 500) -> Response:
    """What happened to your sandboxes: starts, losses, re-creations, ends with their causes, denied
    connections. An administrator is told of all, and of the nodes.

    Without `after`, the latest. With it, the first of those that came since."""
    return reply(await by.events(after, limit))


@router.get("/healthz")
async def healthz() -> Response:
    """The service lives."""
    return reply({"status": "ok"})


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """The pool has a node that is alive; else 503."""
    if not any(node.alive for node in await request.app.state.pool.nodes()):
        raise Refusal(503, "not_ready", "no node of the pool is alive")
    return reply({"status": "ready"})


@router.get("/metrics", response_class=PlainTextResponse)
async def show_metrics(request: Request, by: By) -> Response:
    """Counters and histograms for Prometheus, of all tokens together."""
    text = request.app.state.metrics.render(await by.pool.statuses(), await by.pool.nodes())
    return Response(text, media_type=metrics.CONTENT_TYPE)
