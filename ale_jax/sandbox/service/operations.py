"""Routes: the pool, and how the service does."""

from __future__ import annotations

from collections import Counter

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from ale_jax.sandbox.pool.api import NodeStatus
from ale_jax.sandbox.service import metrics
from ale_jax.sandbox.service.bodies import WarmBody
from ale_jax.sandbox.service.errors import Refusal
from ale_jax.sandbox.service.replies import By, nothing, reply
from ale_jax.sandbox.spec import SandboxSpec

router = APIRouter(tags=["operations"])


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
