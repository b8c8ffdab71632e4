"""The documentation as one page of HTML, without scripts: it works on closed networks too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

STYLE = (
    "body{font:15px/1.45 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "h3{font-family:monospace;margin-bottom:0}td{padding:0 1em 0 0;vertical-align:top}"
    "code{background:#f1f1f1}table{font-size:90%}"
)
Schema = Mapping[str, Any]

router = APIRouter()


@router.get("/docs", include_in_schema=False)
async def show_documentation(request: Request) -> HTMLResponse:
    return HTMLResponse("\n".join(_page(request.app.openapi())))


def _page(schema: Schema) -> Iterator[str]:
    info = schema["info"]
    yield f"<!doctype html><meta charset=utf-8><title>{escape(info['title'])}</title>"
    yield f"<style>{STYLE}</style><h1>{escape(info['title'])}</h1>{_text(info['description'])}"
    yield "<p>For programs: <a href=openapi.json>openapi.json</a></p>"
    tag = None
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            if operation["tags"] != tag:
                tag = operation["tags"]
                yield f"<h2>{escape(', '.join(tag))}</h2>"
            yield f"<h3>{method.upper()} {escape(path)}</h3>{_text(operation['description'])}"
            yield from _table(_inputs(schema, operation))


def _inputs(schema: Schema, operation: Schema) -> Iterator[tuple[str, Schema, str]]:
    """Name, schema and explanation of what a request takes."""
    for each in operation.get("parameters", ()):
        if each["in"] == "query":
            yield f"?{each['name']}", each["schema"], each.get("description", "")
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        body = _resolved(schema, content["schema"])
        if "properties" not in body:
            yield kind, body, operation["requestBody"].get("description", "")
        for name, field in body.get("properties", {}).items():
            yield from _field(schema, name, field)


def _field(schema: Schema, name: str, field: Schema) -> Iterator[tuple[str, Schema, str]]:
    yield name, field, field.get("description", "")
    for inner, value in _resolved(schema, field).get("properties", {}).items():
        yield f"{name}.{inner}", value, value.get("description", "")


def _table(rows: Iterator[tuple[str, Schema, str]]) -> Iterator[str]:
    yield "<table>"
    for name, field, text in rows:
        default = f"default {field['default']!r}" if "default" in field else ""
        cells = (f"<code>{escape(name)}</code>", escape(_kind(field)), escape(default), _line(text))
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    yield "</table>"


def _kind(field: Schema) -> str:
    if "anyOf" in field:
        return " or ".join(_kind(each) for each in field["anyOf"])
    kind = field.get("type", "object")
    return f"{kind} of {_kind(field['items'])}" if "items" in field else kind


def _resolved(schema: Schema, field: Schema) -> Schema:
    if "$ref" not in field:
        return field
    return schema["components"]["schemas"].get(field["$ref"].rpartition("/")[2], {})


def _text(markdown: str) -> str:
    return "".join(f"<p>{_line(part)}</p>" for part in markdown.strip().split("\n\n"))


def _line(markdown: str) -> str:
    html = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(markdown))
    return re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", html)
