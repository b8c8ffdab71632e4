"""Clients of the service, for threads (`with SandboxClient(url).start(spec) as box: box.run("ls")`)
and for coroutines (`async with client.start(spec) as box: await box.run("ls")`)."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import ssl
import time
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

import httpx

from ale_jax.sandbox.blocking import entered
from ale_jax.sandbox.pool.api import SandboxGone, StartRequest, Status
from ale_jax.sandbox.relay import relay_to
from ale_jax.sandbox.sdk import calls
from ale_jax.sandbox.sdk.calls import Call, Send, Step, exchange, http_options
from ale_jax.sandbox.sdk.operations import BoxOperations, ClientOperations
from ale_jax.sandbox.sdk.relay import relayed
from ale_jax.sandbox.sdk.streams import (
    AsyncOutput,
    AsyncTerminal,
    Output,
    Pipes,
    Terminal,
    connection_options,
    terminal_url,
    tls_context,
)
from ale_jax.sandbox.spec import SandboxSpec


class SandboxClient(ClientOperations):
    """Holds persistent connections to one service. Several threads may use it at once.

    token: the bearer token; None for a service without tokens.
    verify: as for httpx, for example an `ssl.SSLContext` for a service with your own certificate.
    """

    def __init__(self, url: str, token: str | None = None, verify: ssl.SSLContext | bool = True):
        tls = tls_context(url, verify)
        self._http = httpx.Client(**http_options(url, token, tls))
        self.url, self._socket_options = url.rstrip("/"), connection_options(token, tls)
        self._has_answered = False

    def start(self, spec: SandboxSpec, **request: Any) -> RemoteSandbox:
        """Returns a running sandbox. request: the other fields of `StartRequest`.

        Errors: SandboxStartError, PoolFull, ValueError.
        """
        return self._box(self._do(calls.start(StartRequest(spec, **request))))

    def close(self) -> None:
        """Closes the connections; sandboxes keep running."""
        self._http.close()

    def __enter__(self) -> SandboxClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _do(self, call: Call) -> Any:
        steps = exchange(call, call.request(self._http), self._has_answered)
        outcome = None
        while True:
            try:
                outcome = self._take(steps.send(outcome))
            except StopIteration as end:
                self._has_answered = True
                return end.value

    def _take(self, step: Step) -> httpx.Response | httpx.TransportError | None:
        if not isinstance(step, Send):
            return time.sleep(step.seconds)
        try:
            return self._http.send(step.request)
        except httpx.TransportError as error:
            return error

    def _then(self, result: Any, function: Callable[[Any], Any]) -> Any:
        return function(result)

    def _aside(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    def _box(self, status: Status) -> RemoteSandbox:
        return RemoteSandbox(self, status)


class RemoteSandbox(BoxOperations):
    """A sandbox of the service. Leaving its `with` block stops it."""

    def __init__(self, client: SandboxClient, status: Status):
        self.id, self.spec = status.id, status.spec
        self._client: SandboxClient = client

    def spawn(
        self,
        argv: Sequence[str] | str,
        timeout: float | None = None,
        stdin: bytes = b"",
        cwd: str = "/work",
        env: Mapping[str, str] | None = None,
    ) -> Output:
        """Starts a process and streams its output. timeout: seconds; None: no limit."""
        call = calls.spawn(self.id, calls.process(argv, timeout, stdin, cwd, env))
        http = self._client._http
        return Output(http, call.request(http), self.id)

    def terminal(self, command: str = "bash -i", rows: int = 24, columns: int = 80) -> Terminal:
        url = terminal_url(self._client.url, self.id, command, rows, columns)
        return Terminal(url, self._client._socket_options, self.id)

    def pipes(self, command: str) -> Pipes:
        """Runs a bash command whose input is sent while its output arrives."""
        url = terminal_url(self._client.url, self.id, command, rows=0, columns=0)
        return Pipes(url, self._client._socket_options, self.id)

    def relay(self, port: int, host: str, target: int) -> AbstractContextManager[None]:
        """Lets programs in the sandbox reach `target` of `host`, as this process reaches it, at
        `port` of their loopback, whatever the network policy, for the duration of the block.

        Errors: SandboxError if the port is in use; at the end of the block SandboxLost, if the
        relay broke in it.
        """
        client, serve = self._client, relay_to(host, target)
        return entered(relayed(client.url, client._socket_options, self.id, port, serve))

    def close(self) -> None:
        """Stops the sandbox, if it still exists."""
        with contextlib.suppress(SandboxGone):
            self._do(calls.stop(self.id))

    def __enter__(self) -> RemoteSandbox:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class AsyncSandboxClient(ClientOperations):
    """The asynchronous counterpart of `SandboxClient`, for one event loop."""

    def __init__(self, url: str, token: str | None = None, verify: ssl.SSLContext | bool = True):
        tls = tls_context(url, verify)
        self._http = httpx.AsyncClient(**http_options(url, token, tls))
        self.url, self._socket_options = url.rstrip("/"), connection_options(token, tls)
        self._has_answered = False

    def start(self, spec: SandboxSpec, **request: Any) -> Starting:
        """Starts a sandbox; `await` the result or enter it with `async with`.

        request: the other fields of `StartRequest`. Errors: SandboxStartError, PoolFull,
        ValueError.
        """
        call = calls.start(StartRequest(spec, **request))
        return Starting(self._then(self._do(call), self._box))

    async def close(self) -> None:
        """Closes the connections; sandboxes keep running."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncSandboxClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _do(self, call: Call) -> Any:
        steps = exchange(call, call.request(self._http), self._has_answered)
        outcome = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as end:
                self._has_answered = True
                return end.value
            outcome = await self._take(step)

    async def _take(self, step: Step) -> httpx.Response | httpx.TransportError | None:
        if not isinstance(step, Send):
            return await asyncio.sleep(step.seconds)
        try:
            return await self._http.send(step.request)
        except httpx.TransportError as error:
            return error

    async def _then(self, result: Coroutine, function: Callable[[Any], Any]) -> Any:
        value = function(await result)
        return await value if inspect.isawaitable(value) else value

    def _aside(self, function: Callable[..., Any], *arguments: Any) -> Coroutine:
        return asyncio.to_thread(function, *arguments)

    def _box(self, status: Status) -> AsyncRemoteSandbox:
        return AsyncRemoteSandbox(self, status)


class Starting(AbstractAsyncContextManager):
    """A sandbox that is being started: `await` it, or enter it with `async with`."""

    def __init__(self, start: Coroutine[Any, Any, AsyncRemoteSandbox]):
        self._start = start
        self._box: AsyncRemoteSandbox | None = None

    def __await__(self) -> Generator[Any, None, AsyncRemoteSandbox]:
        return self._start.__await__()

    async def __aenter__(self) -> AsyncRemoteSandbox:
        self._box = await self._start
        return self._box

    async def __aexit__(self, *exc: object) -> None:
        await self._box.close()


class AsyncRemoteSandbox(BoxOperations):
    """The asynchronous counterpart of `RemoteSandbox`."""

    def __init__(self, client: AsyncSandboxClient, status: Status):
        self.id, self.spec = status.id, status.spec
        self._client: AsyncSandboxClient = client

    def spawn(
        self,
        argv: Sequence[str] | str,
        timeout: float | None = None,
        stdin: bytes = b"",
        cwd: str = "/work",
        env: Mapping[str, str] | None = None,
    ) -> AsyncOutput:
        """Starts a process and streams its output. timeout: seconds; None: no limit."""
        call = calls.spawn(self.id, calls.process(argv, timeout, stdin, cwd, env))
        http = self._client._http
        return AsyncOutput(http, call.request(http), self.id)

    def terminal(
        self, command: str = "bash -i", rows: int = 24, columns: int = 80
    ) -> AsyncTerminal:
        url = terminal_url(self._client.url, self.id, command, rows, columns)
        return AsyncTerminal(url, self._client._socket_options, self.id)

    def relay(self, port: int, host: str, target: int) -> AbstractAsyncContextManager[None]:
        client = self._client
        return relayed(client.url, client._socket_options, self.id, port, relay_to(host, target))

    async def close(self) -> None:
        """Stops the sandbox, if it still exists."""
        with contextlib.suppress(SandboxGone):
            await self._do(calls.stop(self.id))

    async def __aenter__(self) -> AsyncRemoteSandbox:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
