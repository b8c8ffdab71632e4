"""Picks the runtime that starts sandboxes. The process that controls a run does this once."""

from __future__ import annotations

import logging

from ale_jax.config.rollout import is_service
from ale_jax.sandbox.api import Runtime, SandboxStartError
from ale_jax.sandbox.bubblewrap import BubblewrapRuntime
from ale_jax.sandbox.datasets import NO_DATASETS, Datasets
from ale_jax.sandbox.docker_runtime import DockerRuntime
from ale_jax.sandbox.egress.uplink import DIRECT, Uplink
from ale_jax.sandbox.kubernetes.runtime import KubernetesRuntime
from ale_jax.sandbox.sdk.login import ServiceLogin
from ale_jax.sandbox.sdk.service_runtime import ServiceRuntime
from ale_jax.sandbox.spec import SandboxSpec

Picked = DockerRuntime | BubblewrapRuntime | KubernetesRuntime
# In the order of preference.
AUTO: dict[str, type[Picked]] = {"docker": DockerRuntime, "bubblewrap": BubblewrapRuntime}
RUNTIMES: dict[str, type[Picked]] = {**AUTO, "kubernetes": KubernetesRuntime}

log = logging.getLogger(__name__)


def pick_runtime(
    name: str, spec: SandboxSpec, uplink: Uplink = DIRECT, datasets: Datasets = NO_DATASETS
) -> Picked:
    """Returns the runtime called `name`; "auto" is Docker if it works, otherwise bubblewrap.

    uplink: how connections of its sandboxes leave this host. datasets: that it offers to them.

    Errors: ValueError for an unknown name, or what of the latter two cannot be used here;
    SandboxStartError, with the command to fix it, if the requested runtime does not work here.
    """
    if name not in ("auto", *RUNTIMES):
        raise ValueError(f"runtime {name!r} must be one of auto, {', '.join(RUNTIMES)}")
    uplink.upstream()
    datasets.check_here()
    datasets.of(spec)
    reasons = []
    for candidate in AUTO if name == "auto" else (name,):
        try:
            runtime = RUNTIMES[candidate](spec, uplink, datasets)
        except SandboxStartError as error:
            reasons.append(str(error))
            continue
        why = "; ".join(reasons) or ("asked for" if name == candidate else "it works here")
        log.info("sandboxes run in %s (%s); limits: %s", candidate, why, runtime.capabilities)
        return runtime
    raise SandboxStartError("; ".join(reasons))


def login_of(runtime: str) -> ServiceLogin:
    """Returns how this process presents itself to a runtime that is a service. ValueError."""
    return ServiceLogin.of_environment() if is_service(runtime) else ServiceLogin()


def runtime_of_run(
    name: str, spec: SandboxSpec, login: ServiceLogin, uplink: Uplink, datasets: Datasets
) -> Runtime:
    """Returns the runtime that `rollout.runtime` names: as `pick_runtime`, or that of a service,
    whose operator says what its uplink and data sets are. login: of `login_of`, in the process that
    controls the run."""
    if is_service(name):
        return ServiceRuntime(name, login)
    return pick_runtime(name, spec, uplink, datasets)
