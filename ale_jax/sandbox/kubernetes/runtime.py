"""Sandboxes as pods of a Kubernetes cluster."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import secrets
from collections.abc import Mapping

from ale_jax.sandbox import toolkit
from ale_jax.sandbox.api import SandboxError, SandboxStartError
from ale_jax.sandbox.async_sandbox import AsyncSandbox
from ale_jax.sandbox.blocking import StartsBlocking
from ale_jax.sandbox.booting import AGENT_ID, Surroundings, boot, limits_without_groups, log_denial
from ale_jax.sandbox.datasets import NO_DATASETS, Datasets
from ale_jax.sandbox.egress.proxy import Record
from ale_jax.sandbox.egress.uplink import DIRECT, Uplink
from ale_jax.sandbox.kubernetes.cluster import Cluster, ClusterError, Object
from ale_jax.sandbox.kubernetes.machine import READY_S, PodMachine, delete, until_it_runs
from ale_jax.sandbox.kubernetes.manifest import (
    LABEL,
    ROLE,
    image_of,
    pod_of,
    refuse_datasets,
    refuse_unenforceable,
    tools_image,
)
from ale_jax.sandbox.renewal import RenewableSandbox
from ale_jax.sandbox.spec import SandboxSpec

POLICY = "ale-sandboxes"  # the name of the network policy that all pods of sandboxes need
SEE = "launch/kubernetes/pods.yaml has it"
# A new pod's policy may come into force a little after the pod runs.
TRIES, TRY_S = 5, 2.0

log = logging.getLogger(__name__)


class KubernetesRuntime(StartsBlocking):
    """Starts one pod for each sandbox, in the namespace of this process's own pod."""

    name = "kubernetes"

    capabilities: Mapping[str, str] = {
        "memory": "the runner watches their sum; the pod's limit ends all of it",
        "pids": "the runner watches their number",
        "files": "size of emptyDir",
    }

    def __init__(
        self, spec: SandboxSpec, uplink: Uplink = DIRECT, datasets: Datasets = NO_DATASETS
    ):
        """uplink: how what is permitted leaves this pod. datasets: none may be offered. Errors:
        SandboxStartError."""
        self._uplink = uplink
        refuse_unenforceable(spec)
        refuse_datasets([name for name, _ in datasets.entries])
        image_of(spec)
        self._tools, self._cluster = tools_image(), Cluster()
        try:
            _require_isolation(self._cluster.network_policy(POLICY))
        except ClusterError as error:
            raise SandboxStartError(
                f"kubernetes: network policy {POLICY!r} cannot be read: {error}; {SEE}"
            ) from error
        self._is_isolated = False  # not yet known

    async def prepare(self, spec: SandboxSpec) -> None:
        """Only checks the spec: nodes pull images. Errors: SandboxStartError."""
        refuse_unenforceable(spec)
        image_of(spec)

    async def launch(
        self,
        spec: SandboxSpec,
        labels: Mapping[str, str],
        record: Record = log_denial,
        snapshot: bytes = b"",
    ) -> RenewableSandbox:
        """Returns a working sandbox. record: called for each connection that is refused. snapshot:
        always empty, as there is no root on disk.

        Errors: SandboxStartError.
        """
        refuse_unenforceable(spec)

        async def begin(spec: SandboxSpec) -> AsyncSandbox:
            name = f"ale-{secrets.token_hex(8)}"
            try:
                return await self._begin(pod_of(name, spec, labels, self._tools), spec, record)
            except ClusterError as error:
                raise SandboxStartError(f"kubernetes could not start a pod: {error}") from error

        return RenewableSandbox(await begin(spec), begin)

    async def forget(self, snapshot: bytes) -> None:
        """Does nothing: a snapshot is all there is."""

    def reap(self) -> int:
        """Deletes pods of sandboxes that have ended, as they do when their owner is gone, and those
        that nobody waits for any longer. Returns their number."""
        now, count = datetime.datetime.now(datetime.UTC), 0
        try:
            for pod in self._cluster.pods(f"{LABEL}={ROLE}"):
                if _is_over(pod, now):
                    self._cluster.delete_pod(pod["metadata"]["name"])
                    count += 1
        except ClusterError as error:
            log.warning("pods that have ended are left for later: %s", error)
        return count

    async def _begin(self, pod: Object, spec: SandboxSpec, record: Record) -> AsyncSandbox:
        """If this fails or is cancelled, there is no pod."""
        name = pod["metadata"]["name"]
        async with contextlib.AsyncExitStack() as failed:
            failed.push_async_callback(delete, self._cluster, name)
            # A request that is under way would make the pod after it is deleted.
            creating = asyncio.ensure_future(asyncio.to_thread(self._cluster.create_pod, pod))
            try:
                await asyncio.shield(creating)
            except asyncio.CancelledError:
                await asyncio.gather(creating, return_exceptions=True)
                raise
            await until_it_runs(self._cluster, name)
            machine = PodMachine(self._cluster, name)
            failed.push_async_callback(machine.destroy)
            await machine.connect()
            surroundings = Surroundings(
                uid=AGENT_ID,
                substitutes=toolkit.PROGRAM_COMMANDS,
                **limits_without_groups(spec),
            )
            sandbox = await boot(machine, spec, surroundings, record, self._uplink)
            await self._prove_isolation(sandbox)
            failed.pop_all()
        return sandbox

    async def _prove_isolation(self, sandbox: AsyncSandbox) -> None:
        """Errors: SandboxStartError if the sandbox reaches the API server, as it does where no
        network plugin enforces policies."""
        host, port = self._cluster.address
        call = f"exec 3<> /dev/tcp/{host}/{port}"
        for _ in range(TRIES):
            if self._is_isolated:
                return
            try:
                reached = await sandbox.exec(["bash", "-c", call], timeout=TRY_S)
            except SandboxError as error:
                raise SandboxStartError(f"kubernetes: the pod was lost: {error}") from error
            self._is_isolated = reached.exit_code != 0
            if not self._is_isolated:
                await asyncio.sleep(TRY_S)
        if not self._is_isolated:
            raise SandboxStartError(
                f"kubernetes: a sandbox reaches {host}:{port} although policy {POLICY!r} forbids "
                "it: install a network plugin that enforces policies"
            )


def _require_isolation(policy: Object) -> None:
    """Errors: SandboxStartError if the policy lets anything through, or is not for our pods."""
    spec = policy["spec"]
    selected = spec.get("podSelector") or {}
    is_for_us = selected in ({}, {"matchLabels": {LABEL: ROLE}})
    is_closed = not spec.get("ingress") and not spec.get("egress")
    if not (is_for_us and is_closed and {*spec.get("policyTypes", ())} == {"Ingress", "Egress"}):
        raise SandboxStartError(
            f"kubernetes: network policy {POLICY!r} must forbid all traffic of the pods with "
            f"{LABEL}={ROLE}; {SEE}"
        )


def _is_over(pod: Object, now: datetime.datetime) -> bool:
    phase = pod["status"].get("phase")
    created = datetime.datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
    is_forgotten = phase == "Pending" and (now - created).total_seconds() > 2 * READY_S
    return phase in ("Succeeded", "Failed") or is_forgotten
