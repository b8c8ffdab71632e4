"""Routes: whether a sandbox or a node lives, and can be used. Nobody is asked, and nothing waits.

200: it can be used. 503: it lives, but not now. 410: it does not live any more.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.pool.api import NodeStatus, SandboxGone, State, Status
from ale_jax.sandbox.service.errors import Refusal
from ale_jax.sandbox.service.replies import ERRORS, By, Id, reply

# Of a cluster's sandbox, its node's pool is asked, which does not wait for anything either.
NODE_S = 1.0
# A sandbox answers its pool within a tick unless it is in trouble; much longer, and it is lost.
SILENT_S = 0.5

router = APIRouter(tags=["operations"], responses=ERRORS)
Node = Annotated[str, Path(description="The node's name.", max_length=512)]


@router.get("/v1/sandboxes/{id}/health", responses={503: {"description": "Not now."}})
async def sandbox_health(id: Id, by: By) -> Response:
    """How its pool saw it last. 200: it takes commands; 503: it does not yet, or is silent; 410: it
    has ended. Asking does not prolong its life."""
    try:
        async with asyncio.timeout(NODE_S):
            status = await by.status(id)
    except SandboxGone:
        raise
    except (SandboxError, TimeoutError) as error:
        raise _not_now(f"the node of sandbox {id!r} does not answer") from error
    return reply(_checked(status))


@router.get("/v1/nodes/{node:path}/health", responses={503: {"description": "Not now."}})
async def node_health(node: Node, by: By) -> Response:
    """200: it takes another sandbox; 503: it is full; 410: it is lost."""
    for each in await by.pool.nodes():
        if each.node == node:
            return reply(_checked_node(each))
    raise Refusal(404, "not_found", f"there is no node {node!r:.140}", "list them")


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
