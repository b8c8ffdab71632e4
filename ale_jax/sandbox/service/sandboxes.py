"""Routes: the life of sandboxes."""

from __future__ import annotations

from fastapi import APIRouter, Response

from ale_jax.sandbox.pool.api import SnapshotInfo, Status
from ale_jax.sandbox.service.bodies import ForkBody, RestoreBody, StartBody, StartManyBody
from ale_jax.sandbox.service.replies import ERRORS, By, Id, nothing, reply

router = APIRouter(prefix="/v1/sandboxes", tags=["sandboxes"], responses=ERRORS)


@router.post("", status_code=201, response_model=Status)
async def start(body: StartBody, by: By) -> Response:
    """Starts a sandbox; answers when it runs. 500 `start_failed` says in which phase it failed;
    503 `pool_full` that there is no room now."""
    return reply(await by.start(body.request()), 201)


@router.post("/many", status_code=201, response_model=list[Status])
async def start_many(body: StartManyBody, by: By) -> Response:
    """Starts `count + spare` like ones; answers when the first `count` of them run, and stops the
    rest."""
    return reply(await by.start_many(body.request(), body.count, body.spare), 201)


@router.get("", response_model=list[Status])
async def list_sandboxes(by: By) -> Response:
    """Yours; everybody's for an administrator."""
    return reply(await by.statuses())


@router.get("/{id}", response_model=Status)
async def status(id: Id, by: By) -> Response:
    """How it stands; for a while also when it is gone. Asking does not prolong its life."""
    return reply(await by.status(id))


@router.delete("/{id}", status_code=204)
async def stop(id: Id, by: By) -> Response:
    """Ends it and frees what it held."""
    await by.stop(id)
    return nothing()


@router.post("/{id}/snapshot", response_model=SnapshotInfo)
async def snapshot(id: Id, by: By) -> Response:
    """Keeps its working files. The answer's id, which is of their content, can be given to
    `start`: whoever knows it may."""
    return reply(await by.snapshot(id))


@router.post("/{id}/restore", status_code=204)
async def restore(id: Id, body: RestoreBody, by: By) -> Response:
    """As new, then with the working files of a snapshot. 422 if there is none of that id."""
    await by.restore(id, body.snapshot)
    return nothing()


@router.post("/{id}/fork", status_code=201, response_model=list[Status])
async def fork(id: Id, body: ForkBody, by: By) -> Response:
    """New sandboxes of the same spec with the same working files."""
    return reply(await by.fork(id, body.count), 201)
