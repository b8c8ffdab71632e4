"""The operator's HTTP proxy, through which this host's own connections leave its network.

Its password is sent to the proxy only. Sandboxes, events, logs and errors never have it.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import re
from pathlib import Path
from urllib.parse import unquote

from ale_jax.sandbox.egress.policy import Authority, parse_authority
from ale_jax.sandbox.egress.streams import CHUNK, EgressRefusal, Streams

URL = re.compile(r"http://((?P<login>[^@/\s]*)@)?(?P<authority>[^@/\s]*)/?")
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})\b")
URL_FORM = "http://HOST:PORT"
FILE_FORM = "http://USER:PASSWORD@HOST:PORT"


@dataclasses.dataclass(frozen=True)
class UpstreamProxy:
    """login: the value of the header that logs in; empty: none."""

    authority: Authority
    login: str = dataclasses.field(default="", repr=False)

    async def open(self) -> Streams:
        """Connects to the proxy. Errors: OSError."""
        return await asyncio.open_connection(self.authority.host, self.authority.port, limit=CHUNK)

    async def tunnel(self, authority: Authority) -> Streams:
        """Connects through the proxy. Errors: OSError; Refusal if the proxy refuses."""
        reader, writer = await self.open()
        try:
            lines = (f"CONNECT {authority} HTTP/1.1", f"Host: {authority}", *self._headers, "", "")
            writer.write("\r\n".join(lines).encode())
            await writer.drain()
            await _accepted(reader, authority)
        except BaseException:
            writer.transport.abort()
            raise
        return reader, writer

    def head(self, authority: Authority, head: bytes) -> bytes:
        """The head of a request as the proxy must get it: with the full URL, and the login."""
        first, _, headers = head.partition(b"\r\n")
        method, _, rest = first.partition(b" ")
        line = b"%s http://%s%s" % (method, str(authority).encode(), rest)
        own = (header.encode() for header in self._headers)
        return b"\r\n".join((line, *own, headers))

    @property
    def _headers(self) -> tuple[str, ...]:
        return (f"Proxy-Authorization: {self.login}",) if self.login else ()


async def _accepted(reader: asyncio.StreamReader, authority: Authority) -> None:
    """Reads the answer to a CONNECT, of which only the status is repeated: the rest may be about
    the proxy. What follows it is the tunnel's."""
    try:
        answer = STATUS.match(await reader.readuntil(b"\r\n\r\n"))
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        answer = None
    if answer is None or not answer[1].startswith(b"2"):
        said = f"status {answer[1].decode()}" if answer else "no HTTP"
        line = f"the proxy that leads out of here answered {said} for {authority}"
        raise EgressRefusal(502, "upstream", line)


def parse_proxy(text: str) -> UpstreamProxy:
    """Parses a URL without a login. ValueError."""
    if "@" in text:
        raise ValueError(
            f"uplink proxy has a user name: write {FILE_FORM} into a file of mode 600, and here "
            "its absolute path"
        )
    try:
        return _parse(text)
    except ValueError as error:
        raise ValueError(
            f"uplink proxy {text!a:.80}: {error}; write {URL_FORM}, or the absolute path of a file"
        ) from error


def read_proxy(text: str) -> UpstreamProxy:
    """text: a URL without a login, or the path of a file with one. Errors: ValueError, which never
    repeats what the file says."""
    if not text.startswith("/"):
        return parse_proxy(text)
    try:
        mode, url = Path(text).stat().st_mode, Path(text).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"uplink proxy file {text!r:.140} cannot be read: {error!r}") from None
    if mode & 0o077:
        raise ValueError(
            f"uplink proxy file {text!r:.140} is open to others; type: chmod 600 {text}"
        )
    try:
        return _parse(url)
    except ValueError:
        raise ValueError(f"uplink proxy file {text!r:.140} must hold {FILE_FORM}") from None


def _parse(url: str) -> UpstreamProxy:
    match = URL.fullmatch(url)
    if match is None:
        raise ValueError("not the URL of an HTTP proxy")
    authority = parse_authority(match["authority"])
    if match["login"] is None:
        return UpstreamProxy(authority)
    login = base64.b64encode(unquote(match["login"]).encode()).decode()
    return UpstreamProxy(authority, f"Basic {login}")
