"""The middleware in front of the routes: checks tokens, limits bodies and concurrent calls, and
answers a repeated request without executing it twice."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

from ale_jax.sandbox.service.access import ServiceSettings, Tenant, Tokens, admit
from ale_jax.sandbox.service.answers import Answer, Answers
from ale_jax.sandbox.service.metrics import Metrics
from ale_jax.sandbox.service.protocol import UNDONE, Refusal
from ale_jax.sandbox.service.tenants import TenantAccount, Ticket, Turns

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
FOR_CALLER = re.compile(r"/v1/sandboxes(/many|/[^/]+/(run|exec|fork|sessions/[^/]+/expect))?")
UPLOADS = re.compile(r".*/(files|directory|archive|upload)")
CHANGES = ("POST", "PUT", "DELETE")
PIECE = 128 << 10  # bytes; no less than a chunk of a process's output in base64

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

log = logging.getLogger(__name__)


class Guard:
    """An ASGI application that wraps another, which finds its `Tenant` in scope["tenant"], and the
    `Ticket` of its call in scope["ticket"]. On an open path it finds None and no ticket.

    accounts: of the tenants that have called, by name.
    """

    def __init__(self, app, settings: ServiceSettings, tokens: Tokens, metrics: Metrics):
        self._app, self._settings, self._tokens = app, settings, tokens
        self._metrics, self._turns = metrics, Turns()
        self.accounts: dict[str, TenantAccount] = {}
        # Apart for each tenant, because old answers make room for new ones.
        self._answers: dict[str, Answers] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._connect(scope, receive, send)
        else:
            await self._measured(scope, receive, send)

    async def _connect(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A terminal counts as a call for as long as it is open."""
        try:
            tenant = scope["tenant"] = admit(_headers(scope), scope["path"], self._tokens)
            if tenant is None:
                await self._app(scope, receive, send)  # which refuses it
                return
            with self._account(tenant).call() as ticket:
                scope["ticket"] = ticket
                metered = _Metered(receive, send, ticket, self._turns)
                await self._app(scope, metered.receive, metered.send)
        except Refusal as refusal:
            await _send(send, _answer(refusal), "websocket.http.response")

    async def _measured(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, sent = time.monotonic(), _Sent(send)
        self._metrics.under_way += 1
        try:
            await self._admitted(scope, receive, sent)
        except Refusal as refusal:
            scope["failure"] = refusal.kind
            await _send(sent, _answer(refusal))
        except asyncio.CancelledError:
            scope["failure"] = "shutdown"
            await _break_off(sent)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            if sent.status is None:
                await _send(sent, _answer(Refusal(500, "internal", "the service failed")))
        finally:
            self._metrics.under_way -= 1
            self._count(scope, sent.status or 499, time.monotonic() - started)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        operation = getattr(scope.get("endpoint"), "__name__", "none")
        self._metrics.observe(operation, status, seconds)
        if failure := scope.get("failure"):
            self._metrics.failed(operation, failure)

    async def _admitted(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _headers(scope)
        tenant = scope["tenant"] = admit(headers, scope["path"], self._tokens)
        if tenant is None:
            # Its callers would share one account, so that those who send a body without end would
            # keep out the probes. Nothing here needs a body.
            await self._app(scope, _replay(b"", receive), send)
            return
        with self._account(tenant).call() as ticket:
            scope["ticket"] = ticket
            metered = _Metered(receive, send, ticket, self._turns)
            body = await self._body(scope, headers, metered)
            await self._respond(scope, headers, body, metered)

    def _account(self, tenant: Tenant) -> TenantAccount:
        if tenant.name not in self.accounts:
            shares = len(self._tokens.names) > 1
            self.accounts[tenant.name] = TenantAccount(tenant.name, tenant.quota, shares)
        return self.accounts[tenant.name]

    async def _body(self, scope: Scope, headers: dict[str, str], metered: _Metered) -> bytes:
        limit = self._settings.json_bytes
        if UPLOADS.fullmatch(scope["path"]):
            limit = self._settings.upload_bytes
        chunked = "transfer-encoding" in headers
        size = limit if chunked else int(headers.get("content-length", "0"))
        if size > limit:
            raise _too_large(limit)
        await metered.ticket.hold(size)
        try:
            async with asyncio.timeout(self._settings.body_seconds):
                return await _read(metered.receive, limit)
        except TimeoutError:
            message = f"the body took more than {self._settings.body_seconds:g} s"
            raise Refusal(408, "slow_body", message) from None

    async def _respond(self, scope, headers, body: bytes, metered: _Metered) -> None:
        id, tenant = headers.get("x-request-id"), scope["tenant"]
        if id is not None and not REQUEST_ID.fullmatch(id):
            message = f"X-Request-Id {id!r:.140} must match {REQUEST_ID.pattern}"
            raise Refusal(400, "bad_request_id", message)
        # A stream is not stored, so it cannot be repeated.
        repeatable = id and scope["method"] in CHANGES
        if not repeatable or scope["path"].endswith("/spawn"):
            app = self._app(scope, _replay(body, metered.receive), metered.send)
            await (_while_heard(app, metered) if _is_for_caller(scope) else app)
            return
        scope["request_key"] = tenant.name, id
        answer = await self._answers_of(tenant).once(
            scope["request_key"], _digest(scope, body), lambda: _capture(self._app, scope, body)
        )
        echo = (b"x-request-id", id.encode())
        await _send(metered.send, Answer(answer.status, (*answer.headers, echo), answer.body))

    async def cancel(self, tenant: Tenant, id: str) -> Answer | None:
        """See `Answers.cancel`."""
        return await self._answers_of(tenant).cancel((tenant.name, id))

    def _answers_of(self, tenant: Tenant) -> Answers:
        if tenant.name not in self._answers:
            each = self._settings
            self._answers[tenant.name] = Answers(
                each.answers, each.answers_bytes, each.answer_seconds
            )
        return self._answers[tenant.name]


class _Metered:
    """Wraps `receive` and `send` of one call, to count and slow down what is transferred."""

    def __init__(self, receive: Receive, send: Send, ticket: Ticket, turns: Turns):
        self._receive, self._send, self._turns = receive, send, turns
        self.ticket = ticket

    async def receive(self) -> MutableMapping[str, Any]:
        message = await self._receive()
        await self.ticket.receive(_size(message))
        return message

    async def send(self, message: MutableMapping[str, Any]) -> None:
        for piece in _pieces(message):
            await self.ticket.send(_size(piece))
            if piece.get("more_body") or piece["type"] == "websocket.send":
                await self._turns.wait(self.ticket.account.name)
            await self._send(piece)


def _pieces(message: MutableMapping[str, Any]) -> Iterator[MutableMapping[str, Any]]:
    """Divides a long body, so that others have their turns between its pieces."""
    body = message.get("body", b"")
    if len(body) <= PIECE:
        yield message
        return
    for start in range(0, len(body), PIECE):
        more = message.get("more_body", False) or start + PIECE < len(body)
        yield {**message, "body": body[start : start + PIECE], "more_body": more}


def _size(message: MutableMapping[str, Any]) -> int:
    """Of a body or a frame; 0 for messages without."""
    return len(message.get("body") or message.get("bytes") or message.get("text") or b"")


class _Sent:
    """Wraps `send`, and records the status that was sent."""

    def __init__(self, send: Send):
        self._send = send
        self.status: int | None = None

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)


async def _read(receive: Receive, limit: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refusal(400, "hung_up", "the client disconnected before the end of its body")
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        if not message.get("more_body"):
            return bytes(body)


def _too_large(limit: int) -> Refusal:
    return Refusal(413, "too_large", f"the body is longer than {limit} bytes", "send it in parts")


def _is_for_caller(scope: Scope) -> bool:
    """Whether a request without an id is in vain when its caller is gone."""
    return scope["method"] == "POST" and FOR_CALLER.fullmatch(scope["path"]) is not None


async def _while_heard(app: Awaitable[None], metered: _Metered) -> None:
    """Awaits `app`, which does not receive anything after its body, but cancels it when the client
    disconnects. Errors: those of `app`."""
    here = asyncio.current_task()
    assert here is not None
    gone = asyncio.ensure_future(metered.receive())
    gone.add_done_callback(lambda gone: gone.cancelled() or here.cancel())
    try:
        await app
    except asyncio.CancelledError:
        if not gone.done():
            raise
        here.uncancel()
    finally:
        gone.cancel()


def _replay(body: bytes, receive: Receive) -> Receive:
    left = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> MutableMapping[str, Any]:
        return left.pop() if left else await receive()

    return again


async def _capture(app, scope: Scope, body: bytes) -> Answer:
    """Returns the answer of `app`, even if the client disconnects."""
    status, headers, parts, complete = 0, (), [], False

    async def nobody() -> MutableMapping[str, Any]:
        raise AssertionError("a stored answer must not depend on anything after the body")

    async def keep(message: MutableMapping[str, Any]) -> None:
        nonlocal status, headers, complete
        if message["type"] == "http.response.start":
            status, headers = message["status"], tuple(map(tuple, message["headers"]))
        else:
            parts.append(message.get("body", b""))
            complete = not message.get("more_body")

    try:
        await app(scope, _replay(body, nobody), keep)
    except Exception:
        if not complete:
            raise
        log.exception("%s %s failed", scope["method"], scope["path"])
    return Answer(status, headers, b"".join(parts), again=status in UNDONE)


async def _send(send: Send, answer: Answer, kind: str = "http.response") -> None:
    await send({"type": f"{kind}.start", "status": answer.status, "headers": list(answer.headers)})
    await send({"type": f"{kind}.body", "body": answer.body})


async def _break_off(sent: _Sent) -> None:
    """Ends a call that did not finish in time when the service was told to end.

    The cancellation is not raised again, because the server, which cancelled the call, would log it
    as an error.
    """
    if sent.status is None:
        message = "the service is shutting down; it is unknown whether the call was completed"
        await _send(sent, _answer(Refusal(502, "shutdown", message, "repeat it with its id")))
    else:
        await sent({"type": "http.response.body", "body": b""})


def _answer(refusal: Refusal) -> Answer:
    body = json.dumps(refusal.content()).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body))}
    pairs = (headers | dict(refusal.headers())).items()
    return Answer(refusal.status, tuple((n.lower().encode(), v.encode()) for n, v in pairs), body)


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _digest(scope: Scope, body: bytes) -> bytes:
    """Covers everything that makes two requests the same."""
    line = f"{scope['method']} {scope['path']}?".encode() + scope.get("query_string", b"")
    return hashlib.sha256(line + b"\0" + body).digest()
