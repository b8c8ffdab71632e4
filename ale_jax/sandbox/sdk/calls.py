"""Calls of the service's operations: what is sent, when it is sent again, and what an answer or a
failure becomes."""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
import json
import math
import secrets
import ssl
from collections.abc import Awaitable, Callable, Mapping
from types import NoneType
from typing import Any, Generic, TypedDict, TypeVar, cast
from urllib.parse import quote, urlsplit

import httpx

from ale_jax.sandbox.api import ImageMissing, SandboxError, SandboxLost, SandboxStartError
from ale_jax.sandbox.pool.api import Cause, NodeFull, PoolFull, QuotaExceeded, SandboxGone
from ale_jax.sandbox.service.protocol import Endpoint

T = TypeVar("T")

# Seconds before each retry; and before the further ones of a client that the service has answered
# before, which is then being restarted.
PAUSES = (0.1, 0.5, 2.0)
RESTART_PAUSES = (2.0,) * 15
BUSY = (429, 502, 504)
# What the network and the service may need in addition to the time of the call itself.
GRACE_S = 30.0
CONNECT_S = 10.0
QUEUE_S = 120.0  # to wait for a connection while all of them are in use
MAX_CONNECTIONS = 256
CHANGES = ("POST", "PUT", "DELETE")
REQUEST_ID = "X-Request-Id"


@dataclasses.dataclass(frozen=True)
class Call(Generic[T]):
    """One call. id: of the sandbox concerned; empty: none. request_id: of the request concerned.
    seconds: how long it may take; None: as long as calls of the endpoint may."""

    endpoint: Endpoint[T]
    id: str = ""
    session: str = ""
    job: str = ""
    request_id: str = ""
    params: Mapping[str, str | int | float] = dataclasses.field(default_factory=dict)
    body: Mapping[str, Any] | None = None  # sent as JSON
    content: bytes | None = None  # or sent as it is
    content_type: str = ""
    seconds: float | None = None

    def request(self, http: httpx.AsyncClient) -> httpx.Request:
        """Builds the request; one that changes anything gets a unique id, so it can be repeated."""
        method = self.endpoint.method
        headers = {REQUEST_ID: secrets.token_hex(16)} if method in CHANGES else {}
        content, kind = self.content, self.content_type
        if self.body is not None:
            content, kind = json.dumps(self.body).encode(), "application/json"
        if kind:
            headers["Content-Type"] = kind
        seconds = self.endpoint.seconds if self.seconds is None else self.seconds
        read = None if math.isinf(seconds) else seconds + GRACE_S
        return http.build_request(
            method,
            self.endpoint.path.format(
                id=quote(self.id, safe=""),
                session=quote(self.session, safe=""),
                job=quote(self.job, safe=""),
                request=self.request_id,
            ),
            params=dict(self.params),
            content=content,
            headers=headers,
            timeout=httpx.Timeout(CONNECT_S, read=read, write=GRACE_S, pool=QUEUE_S),
        )

    def result(self, answer: httpx.Response) -> T:
        """Reads a response of success. Errors: SandboxError if it is not as it should be."""
        if self.endpoint.answer is NoneType:
            return cast(T, None)
        if self.endpoint.answer is bytes:
            return cast(T, answer.content)
        try:
            return self.endpoint.value(answer.json())
        except ValueError as error:
            raise SandboxError(f"the service answered without JSON: {error}") from error


async def exchange(
    call: Call[T],
    request: httpx.Request,
    send: Callable[[httpx.Request], Awaitable[httpx.Response]],
    has_answered: bool = False,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> T:
    """Returns the result of a call.

    If the service is busy or the network fails, the same request is sent again. The service
    recognizes it by its id and does not execute it twice.

    has_answered: whether the service has answered this client before. pause: waits for so many
    seconds. Errors: those of `failure`, and SandboxError if the service cannot be reached.
    """
    for seconds in (*PAUSES, *(RESTART_PAUSES if has_answered else ()), None):
        try:
            answer = await send(request)
        except httpx.TransportError as error:
            if seconds is None:
                raise unreachable(request, error) from error
        else:
            if answer.is_success:
                return call.result(answer)
            if answer.status_code not in BUSY or seconds is None:
                raise failure(answer.status_code, answer.content, call.id)
        if seconds is not None:
            await pause(seconds)
    raise AssertionError("the last attempt returns or raises")


def unreachable(request: httpx.Request, error: httpx.TransportError) -> SandboxError:
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    where = request.url.copy_with(path="/", query=None)
    return SandboxError(f"no answer from {where} ({what}); type: ale-sandbox serve")


def failure(status: int, body: bytes, id: str) -> Exception:
    """Returns the exception for an error response."""
    try:
        error = json.loads(body)["error"]
        kind, message, remedy = error["kind"], error["message"], error.get("remedy", "")
        cause = Cause(error["cause"]) if "cause" in error else None
    except (ValueError, TypeError, KeyError):
        return SandboxError(f"the service answered {status}: {body[:200]!r}")
    if id and kind in ("sandbox_gone", "not_found"):
        return SandboxGone(id, cause)
    return EXCEPTIONS.get(kind, SandboxError)(f"{message}; {remedy}" if remedy else message)


EXCEPTIONS: Mapping[str, type[Exception]] = {
    "sandbox_lost": SandboxLost,
    "pool_full": PoolFull,
    "quota_exceeded": QuotaExceeded,
    "node_full": NodeFull,
    "image_missing": ImageMissing,
    "start_failed": SandboxStartError,
    "file_not_found": FileNotFoundError,
    "os_error": OSError,
    "invalid": ValueError,
    "unauthorized": PermissionError,
    "forbidden": PermissionError,
}


class HttpOptions(TypedDict):
    """Options of an httpx client."""

    base_url: str
    headers: dict[str, str]
    limits: httpx.Limits
    verify: ssl.SSLContext | bool
    trust_env: bool


def http_options(
    url: str, token: str | None, tls: ssl.SSLContext | None, in_clear: bool = False
) -> HttpOptions:
    """Returns the options of a client with one pool of persistent connections.

    Errors: ValueError if `url` is not the URL of a service, `token` cannot be a token, or it would
    leave this machine without encryption, unless `in_clear` says that it may.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"service url {url!r:.140} must begin with http:// or https://")
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise ValueError("the token contains a space or another character that no token may have")
    has_token = token or urlsplit(url).username  # NAME:TOKEN@ in the URL
    if has_token and tls is None and not in_clear and not _is_here(url):
        raise ValueError(
            f"the token would go to {urlsplit(url).hostname!r:.140} without encryption: use"
            " https:// (ale-sandbox serve --tls-cert FILE --tls-key FILE) or a tunnel to a port of"
            " this machine (ssh -L), or say that it may (--in-clear,"
            " ALE_SANDBOX_IN_CLEAR=1, in_clear=True)"
        )
    return {
        "base_url": url.rstrip("/"),
        "headers": {"Authorization": f"Bearer {token}"} if token else {},
        "limits": httpx.Limits(
            max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS
        ),
        "verify": tls or False,
        "trust_env": False,  # proxies of the environment are for external hosts
    }


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"


def tls_context(url: str, verify: ssl.SSLContext | bool) -> ssl.SSLContext | None:
    """Returns what httpx makes of `verify`; None for http://, because certificates take long to
    load."""
    if not url.startswith("https://"):
        return None
    return httpx.create_ssl_context(verify, trust_env=False)


def form_of(files: Mapping[str, bytes]) -> tuple[bytes, str]:
    """Returns a multipart form and its content type. A random boundary cannot occur in a file."""
    boundary = secrets.token_hex(24)
    parts = []
    for path, data in files.items():
        name = quote(path, safe="/")
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="file"'
        parts += [head.encode(), b"\r\n\r\n", data, b"\r\n"]
    parts.append(f"--{boundary}--\r\n".encode())
    return b"".join(parts), f"multipart/form-data; boundary={boundary}"
