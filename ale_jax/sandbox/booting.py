"""Turns a machine that a runtime has just started into a sandbox that works as its spec says."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ale_jax.sandbox.api import SandboxError, SandboxLost, SandboxStartError
from ale_jax.sandbox.async_sandbox import AsyncSandbox
from ale_jax.sandbox.egress.proxy import EgressProxy, Record
from ale_jax.sandbox.egress.uplink import Uplink
from ale_jax.sandbox.exchange import Machine
from ale_jax.sandbox.link import Stream
from ale_jax.sandbox.spec import ROOT_CAPABILITIES, SandboxSpec

AGENT_ID, ROOT_ID = 1000, 0
PROXY_PORT = 3128
PROXY_VARIABLES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
NO_PROXY_VARIABLES = ("no_proxy", "NO_PROXY")
# Open files of a process where there are no cgroups. Bounds what pipes hold, which nobody counts.
FILES_OF_UNGROUPED = 256

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What the runner must know of the runtime that started it.

    uid: the agent's user id inside the sandbox.
    has_world: whether it puts the agent's processes into namespaces below its own.
    groups: descriptors that it has inherited, to which a process writes "0" to enter a cgroup.
    limits: further resource limits of each of the agent's processes, by name.
    memory_bytes: what they may use together if the runner must enforce it; otherwise 0.
    contents: tar archives with the initial contents of writable directories, by path.
    substitutes: commands for programs that the image may lack.
    socket: path of the socket that it connects to; empty to use the standard streams.
    """

    uid: int
    has_world: bool = False
    groups: Sequence[int] = ()
    limits: Mapping[str, int] = dataclasses.field(default_factory=dict)
    memory_bytes: int = 0
    contents: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    substitutes: Mapping[str, list[str]] = dataclasses.field(default_factory=dict)
    socket: str = ""


async def boot(
    machine: Machine,
    spec: SandboxSpec,
    surroundings: Surroundings,
    record: Record,
    uplink: Uplink,
) -> AsyncSandbox:
    """Boots a sandbox on `machine`. Errors: SandboxStartError, after the machine is destroyed.

    record: called for each connection that the network policy refuses. uplink: how the permitted
    ones leave this host.
    """
    config = _config(spec, surroundings)
    sandbox = AsyncSandbox(machine, spec, surroundings.contents)
    try:
        await sandbox.boot(config)
        if spec.network.mode != "none":
            proxy = EgressProxy(spec.network, record, uplink=uplink)
            await sandbox.open_network(proxy, PROXY_PORT, lambda stream: _serve(proxy, stream))
    except SandboxError as error:
        await sandbox.close()
        raise SandboxStartError(f"the runner did not come up: {error}") from error
    except ValueError as error:  # the proxy's file was changed
        await sandbox.close()
        raise SandboxStartError(str(error)) from error
    return sandbox


def _config(spec: SandboxSpec, surroundings: Surroundings) -> dict[str, Any]:
    """The configuration of the runner, see `runner.main`."""
    return {
        "rights": {
            "uid": surroundings.uid,
            "limits": dict(surroundings.limits),
            "groups": list(surroundings.groups),
            "capabilities": ROOT_CAPABILITIES if spec.user == "root" else (),
        },
        "world": files_limit(spec) if surroundings.has_world else None,
        "env": environment(spec),
        "substitutes": dict(surroundings.substitutes),
        "parts": {} if spec.disk_mb else spec.parts,  # a root on disk is replaced as a whole
        "memory_bytes": surroundings.memory_bytes,
        "socket": surroundings.socket,
    }


def files_limit(spec: SandboxSpec) -> str:
    """Options of the tmpfs on each writable directory."""
    return f"size={spec.files_mb}m,nr_inodes={spec.max_files}"


def limits_without_groups(spec: SandboxSpec) -> dict[str, Any]:
    """Returns what `Surroundings` has where the runner must enforce the spec's memory and pids."""
    memory = spec.memory_mb << 20
    limits = {"RLIMIT_NPROC": spec.pids, "RLIMIT_AS": memory, "RLIMIT_NOFILE": FILES_OF_UNGROUPED}
    return {"limits": limits, "memory_bytes": memory}


def user_id(spec: SandboxSpec) -> int:
    return ROOT_ID if spec.user == "root" else AGENT_ID


def environment(spec: SandboxSpec) -> dict[str, str]:
    """Environment variables of the sandbox's processes, in addition to those of every sandbox."""
    proxy = f"http://127.0.0.1:{PROXY_PORT}"
    variables = {}
    if spec.network.mode != "none":
        variables = dict.fromkeys(PROXY_VARIABLES, proxy)
        # What the loopback has, such as a relay, the proxy could not reach.
        variables |= dict.fromkeys(NO_PROXY_VARIABLES, "127.0.0.1,localhost")
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
