"""The page that documents an application, and a server that is gone when it has been left."""

import contextlib

import pydantic
from fastapi import APIRouter, FastAPI, Query
from starlette.testclient import TestClient

from ale_jax.sandbox.service.access import ServiceSettings
from ale_jax.sandbox.service.app import STYLE, create_app, router
from ale_jax.sandbox.service.bodies import raw_body
from ale_jax.sandbox.service.server import serve_in_thread
from tests.sandbox.service.memory_pool import MemoryPool


class Part(pydantic.BaseModel):
    size: int = pydantic.Field(3, description="In `bytes`.")


class Order(pydantic.BaseModel):
    part: Part = pydantic.Field(description="What to **make**.")
    names: list[str]
    limit: int | None = None


toys = APIRouter(tags=["toys"])


@toys.post("/orders/{id}")
async def order(id: str, body: Order, after: int = Query(0, description="a < b")) -> None:
    """Makes one.

    Twice."""


@toys.put("/files", openapi_extra=raw_body("A tar.", "application/x-tar"))
async def put_file() -> None:
    """Takes a file."""


@toys.get("/files")
async def get_file(path: str) -> None:
    """Reads one."""


def row(name, kind, default, text):
    cells = (f"<code>{name}</code>", kind, default, text)
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def test_the_page_lists_each_route_with_what_it_takes():
    app = FastAPI(title="T&T", description="One.\n\nTwo.", docs_url=None)
    app.include_router(toys)
    app.include_router(router)
    page = TestClient(app).get("/docs").text.splitlines()
    assert page == [
        "<!doctype html><meta charset=utf-8><title>T&amp;T</title>",
        f"<style>{STYLE}</style><h1>T&amp;T</h1><p>One.</p><p>Two.</p>",
        "<p>For programs: <a href=openapi.json>openapi.json</a></p>",
        "<h2>toys</h2>",
        "<h3>POST /orders/{id}</h3><p>Makes one.</p><p>Twice.</p>",
        "<table>",
        row("?after", "integer", "default 0", "a &lt; b"),
        row("part", "object", "", "What to <b>make</b>."),
        row("part.size", "integer", "default 3", "In <code>bytes</code>."),
        row("names", "array of string", "", ""),
        row("limit", "integer or null", "", ""),
        "</table>",
        "<h3>PUT /files</h3><p>Takes a file.</p>",
        "<table>",
        row("application/x-tar", "string", "", "A tar."),
        "</table>",
        "<h3>GET /files</h3><p>Reads one.</p>",
        "<table>",
        row("?path", "string", "", ""),
        "</table>",
    ]


def test_what_a_service_holds_is_let_go_before_it_is_left():
    told = []

    @contextlib.asynccontextmanager
    async def open_app():
        yield create_app(MemoryPool())
        told.append("closed")

    with serve_in_thread(open_app, ServiceSettings(port=0)):
        assert told == []
    assert told == ["closed"]
