"""The few calls of the API server that sandboxes need, as the service account of this pod."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import httpx
import websockets.asyncio.client
from websockets.exceptions import ConnectionClosed, WebSocketException

from ale_jax.sandbox.api import SandboxStartError

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # where the kubelet puts it
HOST, PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
CALL_S = 30.0
# Both have the channels that we use; the second is that of servers before 1.30.
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, STATUS = range(4)  # the first byte of each message
MAX_MESSAGE = 1 << 20
PIECE = 32 << 10
KEPT_STDERR = 2000

Object = dict[str, Any]


class ClusterError(Exception):
    """A call that failed. status: of HTTP; 0 if there was no answer."""

    def __init__(self, message: str, status: int = 0):
        super().__init__(message)
        self.status = status


class Cluster:
    """The API server, and this pod's namespace in it. Thread-safe.

    The account's token is read for each call, because the kubelet replaces it.
    """

    def __init__(self, account: Path | None = None):
        """Errors: SandboxStartError outside of a pod that has a service account."""
        account = account or ACCOUNT
        try:
            host, port = os.environ[HOST], os.environ[PORT]
            self.namespace = (account / "namespace").read_text().strip()
            self._tls = ssl.create_default_context(cafile=account / "ca.crt")
            self._token = account / "token"
            self._token.read_text()
        except (KeyError, OSError) as error:
            raise SandboxStartError(
                f"kubernetes is not usable: this process is in no pod with a service account "
                f"({error}); see launch/kubernetes/pods.yaml, or name the service that is in such "
                "a pod (rollout.runtime=http://HOST:8700)"
            ) from error
        self.address = (host, port)
        authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._sockets = f"wss://{authority}"
        self._http = httpx.Client(
            base_url=f"https://{authority}", verify=self._tls, timeout=CALL_S, trust_env=False
        )

    def create_pod(self, pod: Object) -> None:
        """Errors: ClusterError, also as for all calls below."""
        self._call("POST", self._pods(), json=pod)

    def pod(self, name: str) -> Object:
        return self._call("GET", self._pods(name))

    def pods(self, label: str) -> list[Object]:
        """Returns those that have the label KEY=VALUE."""
        return self._call("GET", self._pods(), params={"labelSelector": label})["items"]

    def output_of(self, name: str, container: str) -> str:
        """Returns the end of what a container has written to both of its streams."""
        place, query = f"{self._pods(name)}/log", {"container": container, "tailLines": "20"}
        answer = self._answer("GET", place, params=query)
        return answer.text[-KEPT_STDERR:]

    def delete_pod(self, name: str) -> None:
        """Ends a pod, if there is one."""
        with contextlib.suppress(_Missing):
            self._call("DELETE", self._pods(name), params={"gracePeriodSeconds": "1"})

    def network_policy(self, name: str) -> Object:
        place = f"/apis/networking.k8s.io/v1/namespaces/{self.namespace}/networkpolicies/{name}"
        return self._call("GET", place)

    @contextlib.asynccontextmanager
    async def attached(self, pod: str, container: str) -> AsyncIterator[Streams]:
        """The standard streams of a running container, which has `stdinOnce`: its standard input
        ends with the block."""
        flags = "stdin=true&stdout=true&stderr=true&tty=false"
        url = f"{self._sockets}{self._pods(pod)}/attach?container={container}&{flags}"
        try:
            connection = await websockets.asyncio.client.connect(
                url,
                ssl=self._tls,
                subprotocols=[*map(websockets.Subprotocol, PROTOCOLS)],
                additional_headers=self._headers(),
                compression=None,
                max_size=MAX_MESSAGE,
                ping_interval=None,  # the runner is asked instead
                proxy=None,
            )
        except (OSError, WebSocketException, TimeoutError) as error:
            raise ClusterError(f"no connection to its standard streams: {error}") from error
        try:
            yield Streams(connection)
        finally:
            await connection.close()

    def _pods(self, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods" + (f"/{name}" if name else "")

    def _headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self._token.read_text().strip()}"}

    def _call(self, method: str, place: str, **parts: Any) -> Object:
        return _content(self._answer(method, place, **parts))

    def _answer(self, method: str, place: str, **parts: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, place, headers=self._headers(), **parts)
        except (httpx.HTTPError, OSError) as error:
            raise _unanswered(error) from error
        if answer.is_error:
            _refuse(answer.status_code, _content(answer))
        return answer


class _Missing(ClusterError):
    """There is no such object."""


def _content(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError as error:
        raise _unanswered(error) from error


def _unanswered(error: Exception) -> ClusterError:
    return ClusterError(f"no answer of the API server ({error!r:.200})")


def _refuse(status: int, content: object) -> NoReturn:
    message = content.get("message") if isinstance(content, dict) else None
    kind = _Missing if status == httpx.codes.NOT_FOUND else ClusterError
    raise kind(f"{message or 'the API server refuses'!s:.1000} ({status})", status)


class Streams:
    """The standard streams of a container, over one connection.

    stderr: the beginning of what it wrote there, and why the streams ended. has_spoken: whether it
    wrote to its standard output.
    """

    def __init__(self, connection: websockets.asyncio.client.ClientConnection):
        self._connection = connection
        self.stderr = bytearray()
        self.has_spoken = False

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carries what `reader` yields to standard input, and standard output to `writer`, until
        one of them, or the container, ends."""
        ways = [asyncio.create_task(self._in(reader)), asyncio.create_task(self._out(writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            writer.close()

    async def _in(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError, ConnectionClosed):
            while data := await reader.read(PIECE):
                await self._connection.send(bytes([STDIN]) + data)

    async def _out(self, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                message = await self._connection.recv(decode=False)
                channel, data = message[:1], message[1:]
                if channel == bytes([STDOUT]):
                    self.has_spoken = True
                    writer.write(data)
                    await writer.drain()
                elif channel in (bytes([STDERR]), bytes([STATUS])):
                    self.stderr += data[: KEPT_STDERR - len(self.stderr)]
