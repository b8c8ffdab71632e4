"""Routes: the files of a sandbox."""

from __future__ import annotations

import asyncio
from typing import Annotated
from urllib.parse import unquote

from fastapi import APIRouter, Query, Request, Response

from ale_jax.sandbox.api import FileInfo
from ale_jax.sandbox.service import tars
from ale_jax.sandbox.service.multipart import parse_form
from ale_jax.sandbox.service.replies import (
    BYTES,
    ERRORS,
    TAR,
    By,
    Id,
    binary,
    nothing,
    raw_body,
    reply,
)

MAX_READ = 64 << 20

router = APIRouter(prefix="/v1/sandboxes/{id}", tags=["files"], responses=ERRORS)
FilePath = Annotated[str, Query(description="Relative to /work, or absolute.", max_length=4096)]
Count = Annotated[int, Query(ge=0, le=MAX_READ, description="No more than so many bytes.")]
FORM = "One file per part; the part's name is its path below /work, percent-encoded."


@router.get("/files", response_class=Response, responses=binary("The content."))
async def read_file(id: Id, by: By, path: FilePath, max_bytes: Count = 1 << 20) -> Response:
    """The beginning of a file. 404 for what the agent cannot read as a regular file, and for a
    path with a symbolic link in it; 422 for a path with `..`."""
    data = await by.call(id, "read", path=path, max_bytes=max_bytes)
    return Response(data, media_type=BYTES)


@router.put("/files", status_code=204, openapi_extra=raw_body("The content."))
async def write_file(id: Id, by: By, path: FilePath, request: Request) -> Response:
    """Writes one file below /work, and the directories on the way; links are not followed."""
    await by.call(id, "write", files={path: await request.body()})
    return nothing()


@router.post("/files", status_code=204, openapi_extra=raw_body(FORM, "multipart/form-data"))
async def write_files(id: Id, by: By, request: Request) -> Response:
    """Writes several files below /work."""
    parts = parse_form(request.headers.get("content-type", ""), await request.body())
    await by.call(id, "write", files={unquote(part.name): part.data for part in parts})
    return nothing()


@router.get("/directory", response_model=list[FileInfo])
async def list_directory(id: Id, by: By, path: FilePath = "/work") -> Response:
    """What is in a directory."""
    return reply(await by.call(id, "list", path=path))


@router.get("/archive", response_class=Response, responses=binary("A tar.", TAR))
async def download(id: Id, by: By, path: FilePath = "/work") -> Response:
    """A directory as a tar. The agent made what is in it: do not believe it when you unpack it."""
    return Response(await by.call(id, "pack", path=path), media_type=TAR)


@router.put("/archive", status_code=204, openapi_extra=raw_body("A plain tar.", TAR))
async def upload(id: Id, by: By, request: Request, path: FilePath = "/work") -> Response:
    """Unpacks a tar into a directory, with the agent's rights. 422 for one with links, devices,
    absolute paths or `..`; then nothing is unpacked."""
    archive = await request.body()
    await asyncio.to_thread(tars.checked, archive)  # which may take a while
    await by.call(id, "unpack", archive=archive, path=path)
    return nothing()
