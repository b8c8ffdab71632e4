"""A pod while it starts, while it is a sandbox, and why it is not."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from typing import Any

from ale_jax.sandbox.api import ImageMissing, SandboxLost, SandboxStartError
from ale_jax.sandbox.kubernetes.cluster import Cluster, ClusterError, Object, Streams
from ale_jax.sandbox.kubernetes.manifest import CONTAINER
from ale_jax.sandbox.link import Link
from ale_jax.sandbox.runner.usage import Usage
from ale_jax.sandbox.vitals import Vitals

READY_S = 300.0  # a node may have to be started, and to pull the image
POLL_S = 0.25
# The server may say so a little after the streams have ended.
REASONS, REASON_S = 4, 0.25
GONE = "the pod was deleted"
# What waits for nothing that comes by itself.
NO_IMAGE = ("ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
BROKEN = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")

log = logging.getLogger(__name__)


class PodMachine:
    """A running pod, whose runner is reached through the standard streams of its container."""

    def __init__(self, cluster: Cluster, pod: str):
        self.link = Link()
        self._cluster, self._pod = cluster, pod
        self._streams: Streams | None = None
        self._carrying: asyncio.Task[None] | None = None
        self._why = ""

    async def connect(self) -> None:
        """Attaches to the container. Errors: SandboxStartError if it has ended; ClusterError."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._carrying = asyncio.create_task(self._carry(ready))
        try:
            await ready
        except ClusterError as error:
            if why := await self._reason():
                raise SandboxStartError(f"kubernetes: the pod has ended: {why}") from error
            raise

    async def _carry(self, ready: asyncio.Future[None]) -> None:
        try:
            async with self._cluster.attached(self._pod, CONTAINER) as self._streams:
                # The far end of the link is a socket, which has all that a transport must have.
                ours, theirs = socket.socketpair()
                loop = asyncio.get_running_loop()
                await loop.connect_accepted_socket(lambda: self.link, theirs)
                reader, writer = await asyncio.open_connection(sock=ours)
                ready.set_result(None)
                await self._streams.carry(reader, writer)
        except ClusterError as error:
            if not ready.done():
                ready.set_exception(error)

    async def alive(self) -> bool:
        try:
            self.link.check()
            pod = await asyncio.to_thread(self._cluster.pod, self._pod)
        except (SandboxLost, ClusterError):
            return False
        return pod["status"].get("phase") == "Running"

    def vitals(self) -> Vitals | None:
        return None  # a node of the cluster has the runner

    def usage(self) -> Usage:
        return {}

    def last_words(self) -> str:
        # What a silent runner has written is part of why it ended.
        told = self._streams is not None and (self._streams.has_spoken or not self._why)
        words = self._streams.stderr.decode("utf-8", "replace") if told else ""
        return "; ".join(filter(None, (self._why, words)))

    async def destroy(self) -> None:
        with contextlib.suppress(SandboxLost):
            self.link.check()
            self.link.fail("the sandbox is closed")
            self._why = "it is closed"
        if not self._why:
            self._why = await self._reason()
        if self._carrying is not None:
            self._carrying.cancel()
            await asyncio.gather(self._carrying, return_exceptions=True)
        await delete(self._cluster, self._pod)

    async def _reason(self) -> str:
        """Why a lost pod ended, as the API server says; empty if it did not."""
        for _ in range(REASONS):
            try:
                pod = await asyncio.to_thread(self._cluster.pod, self._pod)
            except ClusterError as error:
                return GONE if error.status == 404 else str(error)
            if pod["status"].get("phase") != "Running":
                has_spoken = self._streams is not None and self._streams.has_spoken
                return end_of(pod) if has_spoken else await silent_end_of(self._cluster, pod)
            await asyncio.sleep(REASON_S)
        return ""


async def delete(cluster: Cluster, pod: str) -> None:
    """Deletes a pod, or leaves it to the reaper."""
    try:
        await asyncio.to_thread(cluster.delete_pod, pod)
    except ClusterError as error:
        log.warning("pod %s is left to the reaper: %s", pod, error)


async def until_it_runs(cluster: Cluster, name: str) -> None:
    """Waits until the runner of a new pod has started.

    Errors: SandboxStartError if it cannot, or has not after READY_S; ClusterError.
    """
    deadline = time.monotonic() + READY_S
    while True:
        pod = await asyncio.to_thread(cluster.pod, name)
        status = pod["status"]
        if status.get("phase") in ("Failed", "Succeeded"):
            why = await silent_end_of(cluster, pod)
            raise SandboxStartError(f"kubernetes: the pod has ended: {why}")
        states = [each for each in _states(status) if each]
        for waiting in (state["waiting"] for state in states if "waiting" in state):
            why = f"{waiting.get('reason')}: {waiting.get('message', 'no message')}"
            if waiting.get("reason") in NO_IMAGE:
                raise ImageMissing(f"kubernetes cannot pull the image: {why:.500}")
            if waiting.get("reason") in BROKEN:
                raise SandboxStartError(f"kubernetes cannot start the pod: {why:.500}")
        if any("running" in state for state in _states(status, "containerStatuses")):
            return
        if time.monotonic() > deadline:
            raise SandboxStartError(
                f"kubernetes: the pod does not run after {READY_S:g} s: {_hindrance(status)}"
            )
        await asyncio.sleep(POLL_S)


def end_of(pod: Object) -> str:
    """Why a pod has ended, as far as the API server knows."""
    status = pod["status"]
    words = [status.get("reason"), status.get("message")]
    for ended in (state["terminated"] for state in _states(status) if "terminated" in state):
        if ended.get("exitCode"):
            words += [ended.get("reason"), ended.get("message"), f"exit code {ended['exitCode']}"]
    return ": ".join(str(word) for word in words if word)[:500] or "no reason is known"


async def silent_end_of(cluster: Cluster, pod: Object) -> str:
    """Why a pod has ended whose runner sent nothing, so that all that it wrote is meant for us. It
    may have ended before we were attached to it, as one does that cannot start."""
    name, states = pod["metadata"]["name"], _states(pod["status"], "containerStatuses")
    words = ""
    if any("terminated" in state for state in states):
        try:
            words = await asyncio.to_thread(cluster.output_of, name, CONTAINER)
        except ClusterError as error:
            words = f"its output cannot be read: {error}"
    return ": ".join(filter(None, (end_of(pod), words.strip())))


def _states(status: Object, *kinds: str) -> list[dict[str, Any]]:
    kinds = kinds or ("initContainerStatuses", "containerStatuses")
    return [each.get("state", {}) for kind in kinds for each in status.get(kind) or ()]


def _hindrance(status: Object) -> str:
    """What a pod waits for."""
    waiting = [
        state["waiting"].get("reason", "") for state in _states(status) if "waiting" in state
    ]
    unmet = [
        f"{each.get('reason', each['type'])}: {each.get('message', 'no message')}"
        for each in status.get("conditions") or ()
        if each.get("status") == "False"
    ]
    return "; ".join([*unmet, *waiting])[:500] or "it waits for a node"
