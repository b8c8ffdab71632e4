"""The head of a proxy request, read strictly, and what is sent on in its place.

Strictly, because two readers who disagree about where a request ends can be made to see different
ones. Not by h11: it takes bare line feeds, folded lines, equal lengths that are given twice, and a
length beside chunks, and mends them.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence

from ale_jax.sandbox.egress.hosts import Authority, bracketed, parse_authority
from ale_jax.sandbox.egress.limits import Limits
from ale_jax.sandbox.egress.refusal import Refusal, malformed
from ale_jax.sandbox.egress.streams import Incoming

TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
VISIBLE = re.compile(r"[\x21-\x7e]+")
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
TARGET = re.compile(r"http://(?P<authority>[^/?#]*)(?P<path>[^#]*)", re.IGNORECASE)
LENGTH = re.compile(r"[0-9]{1,18}")
VERSIONS = ("HTTP/1.0", "HTTP/1.1")
HTTP_PORT = 80
FRAMING = {"content-length", "transfer-encoding"}
AT_MOST_ONCE = ("host", *sorted(FRAMING))
# They are between the sandbox and us, or written anew, as is all that begins with "proxy-".
NOT_PASSED_ON = {"connection", "host", "http2-settings", "keep-alive", "te", "trailer", "upgrade"}

Headers = Sequence[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Request:
    """authority: where it leads. head: what is sent there; None for a tunnel (CONNECT).

    body_bytes: None if the body comes in chunks.
    """

    authority: Authority
    head: bytes | None
    body_bytes: int | None


async def read_request(incoming: Incoming, limits: Limits) -> Request:
    """Errors: Refusal, OSError."""
    lines, room = [], limits.head_bytes
    while line := await incoming.line(room):
        lines.append(line.decode("latin-1"))
        room -= len(line) + 2
        if len(lines) > 1 + limits.headers:
            raise Refusal(431, "request", "the request has too many headers")
    if not lines:
        raise malformed("the request begins with an empty line")
    return parse_request(lines)


def parse_request(lines: Sequence[str]) -> Request:
    """lines: of the head, without their ends; the bytes as Latin-1. Errors: Refusal."""
    method, target, version = _parse_request_line(lines[0])
    headers = [_parse_header(line) for line in lines[1:]]
    body_bytes = _body_bytes(headers, version)
    if method == "CONNECT":
        if body_bytes != 0:
            raise malformed("a CONNECT has no body")
        return Request(_authority(target, None), None, 0)
    match = TARGET.fullmatch(target)
    if match is None:
        raise malformed("this is a proxy: ask for a whole http URL, or CONNECT HOST:PORT")
    authority = _authority(match["authority"], HTTP_PORT)
    path = match["path"] if match["path"].startswith("/") else "/" + match["path"]
    head = _head(f"{method} {path} {version}", authority, headers)
    return Request(authority, head, body_bytes)


def _parse_request_line(line: str) -> tuple[str, str, str]:
    parts = line.split(" ")
    if len(parts) != 3 or not TOKEN.fullmatch(parts[0]) or not VISIBLE.fullmatch(parts[1]):
        raise malformed("the request line is not METHOD TARGET VERSION")
    if parts[2] not in VERSIONS:
        raise malformed(f"the version of HTTP is not one of {', '.join(VERSIONS)}")
    return parts[0], parts[1], parts[2]


def _parse_header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not TOKEN.fullmatch(name) or CONTROL.search(value):
        raise malformed("a header is not NAME: VALUE on one line")
    return name, value.strip(" \t")


def _authority(text: str, default_port: int | None) -> Authority:
    try:
        return parse_authority(text, default_port)
    except ValueError:  # its message quotes the text, in which a password may be
        line = "the target is not a host and a port (and a proxy takes no user names)"
        raise malformed(line) from None


def _body_bytes(headers: Headers, version: str) -> int | None:
    counts = Counter(name.lower() for name, _ in headers)
    for name in AT_MOST_ONCE:
        if counts[name] > 1:
            raise malformed(f"several {name} headers")
    values = {name.lower(): value for name, value in headers}
    length, coding = values.get("content-length"), values.get("transfer-encoding")
    if coding is not None:
        if length is not None:
            raise malformed("both content-length and transfer-encoding")
        if coding.lower() != "chunked" or version == "HTTP/1.0":
            raise malformed("a transfer-encoding that is not chunked, or in HTTP/1.0")
        return None
    if length is not None and not LENGTH.fullmatch(length):
        raise malformed("content-length is not a number of bytes")
    return int(length or 0)


def _head(request_line: str, authority: Authority, headers: Headers) -> bytes:
    own = bracketed(authority.host) if authority.port == HTTP_PORT else str(authority)
    # A body whose length was left out by name would be read as a second request.
    dropped = NOT_PASSED_ON | (_named_by_connection(headers) - FRAMING)
    kept = [
        f"{name}: {value}"
        for name, value in headers
        if name.lower() not in dropped and not name.lower().startswith("proxy-")
    ]
    lines = [request_line, f"Host: {own}", *kept, "Connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1")


def _named_by_connection(headers: Headers) -> set[str]:
    values = (value for name, value in headers if name.lower() == "connection")
    return {option.strip().lower() for value in values for option in value.split(",")}
