"""A call to the service without any input or output: what to send, when again, what came back."""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Callable, Generator, Mapping
from typing import Any, Generic, TypeVar

import httpx

from ale_jax.sandbox.api import SandboxError, SandboxLost, SandboxStartError
from ale_jax.sandbox.pool.api import Cause, PoolFull, SandboxGone

T = TypeVar("T")

# Seconds before each further attempt.
PAUSES = (0.1, 0.5, 2.0)
BUSY = (429, 502, 504)
# What the network and the service may need beyond the time that the call itself takes.
GRACE_S = 30.0
CONNECT_S = 10.0
QUEUE_S = 120.0  # for one of the connections, while all of them are in use
MAX_CONNECTIONS = 256
CHANGES = ("POST", "PUT", "DELETE")


@dataclasses.dataclass(frozen=True)
class Call(Generic[T]):
    """parse: makes the result out of an answer. seconds: what it may take; None: no limit.
    id: of the sandbox that it is about; empty: none."""

    method: str
    path: str
    parse: Callable[[httpx.Response], T]
    id: str = ""
    params: Mapping[str, str | int] = dataclasses.field(default_factory=dict)
    body: Any = None  # becomes JSON
    content: bytes | None = None  # or goes as it is
    content_type: str = ""
    seconds: float | None = GRACE_S

    def request(self, http: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        """With an id of its own if it changes anything, so that it can be sent again."""
        headers = {"X-Request-Id": secrets.token_hex(16)} if self.method in CHANGES else {}
        content, kind = self.content, self.content_type
        if self.body is not None:
            content, kind = json.dumps(self.body).encode(), "application/json"
        if kind:
            headers["Content-Type"] = kind
        read = None if self.seconds is None else self.seconds + GRACE_S
        return http.build_request(
            self.method,
            self.path,
            params=dict(self.params),
            content=content,
            headers=headers,
            timeout=httpx.Timeout(CONNECT_S, read=read, write=GRACE_S, pool=QUEUE_S),
        )


@dataclasses.dataclass(frozen=True)
class Send:
    """Do it, and tell the answer or the httpx.TransportError."""

    request: httpx.Request


@dataclasses.dataclass(frozen=True)
class Pause:
    seconds: float


Step = Send | Pause
Outcome = httpx.Response | httpx.TransportError | None


def exchange(call: Call[T], request: httpx.Request) -> Generator[Step, Outcome, T]:
    """The steps of a call; whoever takes them sends back what came of each.

    After trouble on the way, the same request is sent again: by its id, the service knows it, and
    does not carry it out twice.
    Errors: those of `failure`, and SandboxError if the service cannot be reached.
    """
    for pause in (*PAUSES, None):
        outcome = yield Send(request)
        if isinstance(outcome, httpx.Response) and outcome.status_code not in BUSY:
            if outcome.is_success:
                return call.parse(outcome)
            raise failure(outcome.status_code, outcome.content, call.id)
        if pause is not None:
            yield Pause(pause)
    if isinstance(outcome, httpx.Response):
        raise failure(outcome.status_code, outcome.content, call.id)
    raise unreachable(request, outcome) from outcome


def unreachable(request: httpx.Request, error: Exception) -> SandboxError:
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    return SandboxError(
        f"no answer from {request.url.copy_with(path='/', query=None)} ({what});"
        " type: ale-sandbox serve"
    )


def failure(status: int, body: bytes, id: str) -> Exception:
    """The exception that stands for an answer which is an error."""
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
    "start_failed": SandboxStartError,
    "file_not_found": FileNotFoundError,
    "os_error": OSError,
    "invalid": ValueError,
    "unauthorized": PermissionError,
    "forbidden": PermissionError,
}


def http_options(url: str, token: str | None, verify: Any) -> dict[str, Any]:
    """How both kinds of httpx client are made: one pool of connections, which stay open.

    Errors: ValueError for what is no URL of a service, or no token.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"service url {url!r:.140} must begin with http:// or https://")
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise ValueError("the token holds a blank or another sign that no token has")
    return {
        "base_url": url.rstrip("/"),
        "headers": {"Authorization": f"Bearer {token}"} if token else {},
        "limits": httpx.Limits(
            max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS
        ),
        # Certificates, which take long to read, are only for https.
        "verify": verify if url.startswith("https://") else False,
        "trust_env": False,  # a proxy of the environment's is for the world outside
    }
