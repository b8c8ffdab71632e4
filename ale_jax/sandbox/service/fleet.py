"""Routes: the page that shows the fleet live, and what it shows."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import time
from pathlib import Path

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse

from ale_jax.sandbox.service.fleet_rows import sandbox_rows
from ale_jax.sandbox.service.operations import After
from ale_jax.sandbox.service.records import plain
from ale_jax.sandbox.service.replies import JSON, By

PARTS = Path(__file__).with_name("fleet_page")
SCRIPTS = ("format.js", "keyed_list.js", "service.js", "nodes.js", "sandboxes.js", "events.js")
EVENTS_SHOWN = 200

router = APIRouter()


@router.get("/v1/fleet", tags=["operations"])
async def show_fleet(by: By, after: After = None) -> Response:
    """Nodes, your sandboxes and the events after that number, as `/fleet` shows them: all that
    live, those that ended last, and of each what fits in a row."""
    answer = {
        "at": time.time(),
        "nodes": plain(await by.pool.nodes()),
        "sandboxes": sandbox_rows(await by.statuses()),
        "events": plain(await by.events(after, EVENTS_SHOWN)),
    }
    return Response(json.dumps(answer), media_type=JSON)


@router.get("/fleet", include_in_schema=False)
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
    """The page, and its policy: nothing but its own style and script, and this service's answers.

    Trusted Types forbid the script to make HTML out of text, whoever wrote the text.
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
