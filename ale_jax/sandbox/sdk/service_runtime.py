"""A service as the runtime of a run. Each sandbox has a lease, which is renewed while this process
lives, so that the service ends what a killed process has left behind."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from ale_jax.sandbox.api import SandboxError, SandboxStartError, SnapshotGone
from ale_jax.sandbox.blocking import blocking, entered, wait_for
from ale_jax.sandbox.egress.policy import EgressPolicy
from ale_jax.sandbox.pool.accounting import OWNER, Room
from ale_jax.sandbox.pool.api import SandboxGone, StartRequest, Status
from ale_jax.sandbox.sdk.async_client import AsyncRemoteSandbox, AsyncSandboxClient
from ale_jax.sandbox.sdk.calls import Call
from ale_jax.sandbox.sdk.login import TOKEN, ServiceLogin
from ale_jax.sandbox.service import protocol
from ale_jax.sandbox.service.protocol import Endpoint, plain
from ale_jax.sandbox.spec import SandboxSpec

LEASE_S = 120.0  # more than a service may need to be started again
RENEWALS = 4  # in the time of a lease
CLOSE_S = 5.0  # to end a sandbox; what is not ended by then ends with its lease

log = logging.getLogger(__name__)


class ServiceRuntime:
    """An `api.Runtime` whose sandboxes are those of the service at `url`.

    lease_seconds: how long a sandbox outlives this process.
    """

    def __init__(self, url: str, login: ServiceLogin | None = None, lease_seconds: float = LEASE_S):
        """Connects to nobody yet. Errors: ValueError for a token that cannot be one, or would leave
        this machine in clear."""
        login = login or ServiceLogin()
        self.name = url
        self.capabilities: Mapping[str, str] = {"all limits": "the service"}
        self._client = AsyncSandboxClient(url, login.token, login.verify(), login.in_clear)
        self._lease_seconds = lease_seconds

    def start(self, spec: SandboxSpec, labels: Mapping[str, str]) -> ServiceSandbox:
        """Returns a working sandbox. Errors: SandboxStartError, also if there is no room for it."""
        return ServiceSandbox(wait_for(self._launch(spec, labels), LeasedSandbox.close))

    def reap(self) -> int:
        """Removes nothing, as the service does it itself; returns 0."""
        return 0

    def check(self, spec: SandboxSpec, count: int, calls: int) -> None:
        """Starts a sandbox, and ends it again, to see that the service and its token serve.

        count: of sandboxes that will be needed at a time. calls: in progress with each of them.
        Errors: SandboxStartError; ValueError if the token, or the service, could never have so
        many.
        """
        with self.start(spec, {"role": "trial"}) as box:
            wait_for(self._check_room(box, Room.of(spec, count), count * calls))

    async def _check_room(self, box: ServiceSandbox, room: Room, calls: int) -> None:
        owner = (await box.later.status()).labels[OWNER]
        (usage,) = (each for each in await self._client.usage() if each.tenant == owner)
        needs = dataclasses.asdict(room) | {"calls": calls}
        for name, need in needs.items():
            if (limit := usage.limits[name]) is not None and need > limit:
                raise ValueError(
                    f"{name}: this run needs {need:g} at a time, and its token at {self.name} may "
                    f"have {limit:g}: {REMEDY}"
                )
        nodes = [node for node in await self._client.nodes() if node.alive]
        slots = sum(node.slots for node in nodes)
        if room.sandboxes > slots:
            raise ValueError(
                f"this run needs {room.sandboxes:g} sandboxes at a time, and {self.name} has "
                f"{slots} slots: {REMEDY}"
            )

    async def _launch(self, spec: SandboxSpec, labels: Mapping[str, str]) -> LeasedSandbox:
        request = StartRequest(spec, labels=labels, deadline_seconds=self._lease_seconds)
        try:
            status = await self._client.do(Call(protocol.START, body=plain(request)))
        except PermissionError as error:
            raise SandboxStartError(_refused(error, self.name)) from error
        except SandboxStartError:
            raise
        except (SandboxError, ValueError) as error:  # such as PoolFull, and fields it does not know
            raise SandboxStartError(f"{self.name} started no sandbox: {error}") from error
        return LeasedSandbox(self._client, status, self._lease_seconds)


REMEDY = (
    "lower rollout.actors or rollout.episodes_per_actor, or ask the service's operator for more"
)


def _refused(error: PermissionError, where: str) -> str:
    what = str(error).partition(";")[0]
    return f"{where} refuses: {what}; set {TOKEN} to a token that it accepts"


class LeasedSandbox(AsyncRemoteSandbox):
    """A sandbox that the service ends once this process no longer renews its lease."""

    def __init__(self, client: AsyncSandboxClient, status: Status, lease_seconds: float):
        super().__init__(client, status)
        keep = self._keep(lease_seconds)
        self._keeping = asyncio.get_running_loop().create_task(keep)

    @contextlib.asynccontextmanager
    async def relay(self, port: int, host: str, target: int) -> AsyncIterator[None]:
        with self._without_refusals():
            async with super().relay(port, host, target):
                yield

    async def alive(self) -> bool:
        try:
            return await super().alive()
        except SandboxError:
            return False

    async def close(self) -> None:
        """Stops the sandbox. One that cannot be stopped now is stopped at the end of its lease."""
        self._keeping.cancel()
        try:
            async with asyncio.timeout(CLOSE_S):
                await super().close()
        except (SandboxError, TimeoutError) as error:
            log.warning("sandbox %s is left to the end of its lease: %r", self.id, error)

    async def _keep(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds / RENEWALS)
            try:
                await self.renew(seconds)
            except SandboxGone:
                return  # the next call says so
            except (SandboxError, ValueError) as error:
                log.warning("the lease of sandbox %s is not renewed: %s", self.id, error)

    async def _do(self, endpoint: Endpoint[Any], **parts: Any) -> Any:
        with self._without_refusals():
            return await super()._do(endpoint, **parts)

    @contextlib.contextmanager
    def _without_refusals(self) -> Iterator[None]:
        """Makes a token that is no longer accepted trouble of the sandbox. As the PermissionError
        that it is, it would be taken for one of the agent's files."""
        try:
            yield
        except PermissionError as error:
            raise SandboxError(_refused(error, "the service")) from error


class ServiceSandbox:
    """An `api.Sandbox` of a service, for threads. A snapshot is the name of one that the service
    holds, and which makes room for newer ones."""

    def __init__(self, later: LeasedSandbox):
        self.later = later

    exec = blocking(AsyncRemoteSandbox.exec)
    open_session = blocking(AsyncRemoteSandbox.open_session)
    close_session = blocking(AsyncRemoteSandbox.close_session)
    begin = blocking(AsyncRemoteSandbox.begin)
    send = blocking(AsyncRemoteSandbox.send)
    expect = blocking(AsyncRemoteSandbox.expect)
    interrupt = blocking(AsyncRemoteSandbox.interrupt)
    run = blocking(AsyncRemoteSandbox.run)
    read = blocking(AsyncRemoteSandbox.read)
    write = blocking(AsyncRemoteSandbox.write)
    replace_directory = blocking(AsyncRemoteSandbox.replace_directory)
    reset = blocking(AsyncRemoteSandbox.reset)
    renew = blocking(AsyncRemoteSandbox.replace_machine)
    kill_processes = blocking(AsyncRemoteSandbox.kill_processes)
    alive = blocking(LeasedSandbox.alive)
    close = blocking(LeasedSandbox.close)

    @property
    def spec(self) -> SandboxSpec:
        return self.later.spec

    @property
    def network(self) -> EgressPolicy:
        return self.spec.network

    def set_network(self, policy: EgressPolicy) -> None:
        """Errors: ValueError, always."""
        raise ValueError(
            f"network {policy.mode!r}: a sandbox of a service keeps the network of its spec, "
            f"{self.network.mode!r}; play this task in sandboxes of this machine (rollout.runtime)"
        )

    def snapshot(self) -> bytes:
        return wait_for(self.later.snapshot()).id.encode()

    def restore(self, snapshot: bytes) -> None:
        """Errors: SnapshotGone if it has made room for others, or went with its service."""
        try:
            wait_for(self.later.restore(snapshot.decode()))
        except ValueError as error:
            raise SnapshotGone(str(error)) from error

    def relay(self, port: int, host: str, target: int) -> AbstractContextManager[None]:
        """As `AsyncRemoteSandbox.relay`, to whatever this process reaches."""
        return entered(self.later.relay(port, host, target))

    def __enter__(self) -> ServiceSandbox:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
