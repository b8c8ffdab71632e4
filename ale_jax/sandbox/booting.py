"""Turns a machine that a runtime has just started into a sandbox that works as its spec says."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from ale_jax.sandbox.api import SandboxError, SandboxLost, SandboxStartError
from ale_jax.sandbox.async_sandbox import AsyncSandbox
from ale_jax.sandbox.egress.proxy import EgressProxy, Record
from ale_jax.sandbox.exchange import Machine
from ale_jax.sandbox.link import Stream
from ale_jax.sandbox.spec import SandboxSpec

AGENT_ID, ROOT_ID = 1000, 0
PROXY_PORT = 3128
PROXY_VARIABLES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")

# For runtimes whose cgroups or daemon enforce the limits.
NO_LIMITS: Mapping[str, Any] = {"rlimits": {}, "memory_bytes": 0}

log = logging.getLogger(__name__)


async def boot(
    machine: Machine,
    spec: SandboxSpec,
    limits: Mapping[str, Any],
    contents: Mapping[str, bytes],
    substitutes: Mapping[str, list[str]],
    record: Record,
    socket: str = "",
    make: Callable[..., AsyncSandbox] = AsyncSandbox,
) -> AsyncSandbox:
    """Boots a sandbox on `machine`. Errors: SandboxStartError, after the machine is destroyed.

    limits: those that the runner enforces itself: rlimits and memory_bytes of its `Agent`.
    contents: tar archives with the initial contents of writable directories, by path.
    substitutes: commands for programs that the image may lack.
    record: called for each connection that the network policy refuses.
    socket: path of the socket that the runner connects to; empty to use the standard streams.
    make: called with the first, second and fourth argument.
    """
    user = user_id(spec)
    config = {"uid": user, "gid": user, "env": environment(spec), **limits}
    config |= {"substitutes": dict(substitutes), "parts": spec.parts, "socket": socket}
    sandbox = make(machine, spec, contents)
    try:
        await sandbox.boot(config)
        if spec.network.mode != "none":
            proxy = EgressProxy(spec.network, record)
            await sandbox.open_network(proxy, PROXY_PORT, lambda stream: _serve(proxy, stream))
    except SandboxError as error:
        await sandbox.close()
        raise SandboxStartError(f"the runner did not come up: {error}") from error
    return sandbox


def user_id(spec: SandboxSpec) -> int:
    return ROOT_ID if spec.user == "root" else AGENT_ID


def environment(spec: SandboxSpec) -> dict[str, str]:
    """Environment variables of the sandbox's processes, in addition to those of every sandbox."""
    proxy = f"http://127.0.0.1:{PROXY_PORT}"
    variables = dict.fromkeys(PROXY_VARIABLES, proxy) if spec.network.mode != "none" else {}
    if spec.user == "root":
        variables |= {"USER": "root", "LOGNAME": "root"}
    return variables | dict(spec.env)


async def _serve(proxy: EgressProxy, stream: Stream) -> None:
    end = _StreamEnd(stream)
    await proxy.serve(end, end)


class _StreamEnd:
    """Adapts a stream to the proxy's Reader and Writer. A lost sandbox raises an OSError."""

    def __init__(self, stream: Stream):
        self._stream = stream
        self._unread, self._unsent = b"", bytearray()

    async def read(self, n: int) -> bytes:
        if not self._unread:
            try:
                piece = await self._stream.receive()
            except SandboxLost as error:
                raise ConnectionResetError(str(error)) from error
            self._unread = piece[1] if piece else b""
        taken, self._unread = self._unread[:n], self._unread[n:]
        return taken

    def write(self, data: bytes) -> None:
        self._unsent += data

    async def drain(self) -> None:
        data, self._unsent = bytes(self._unsent), bytearray()
        try:
            await self._stream.send(data)
        except SandboxLost as error:
            raise ConnectionResetError(str(error)) from error

    def close(self) -> None:
        self._stream.abandon()


def log_denial(kind: str, detail: str, **fields: object) -> None:
    """The default `record` of a sandbox: logs a warning."""
    log.warning("%s: %s %s", kind, detail, fields)
