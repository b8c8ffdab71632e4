"""`ale-sandbox doctor`: what works on this machine, and which line to type for what does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ale_jax.sandbox import bubblewrap, cgroups, docker_runtime
from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.cli import tables
from ale_jax.sandbox.sdk.client import SandboxClient
from ale_jax.sandbox.spec import SandboxSpec


@dataclasses.dataclass(frozen=True)
class Finding:
    """trouble: empty if it works; else why not, with the line to type."""

    what: str
    trouble: str


def doctor(spec: SandboxSpec, url: str, token: str | None) -> int:
    """Shows the findings; 0 if there is a runtime that can start `spec`."""
    runtimes = list(_runtimes(spec))
    findings = [*runtimes, _limits(), _service(url, token)]
    rows = [("works" if not f.trouble else "no", f.what, f.trouble) for f in findings]
    tables.show("", ("", "", ""), rows)
    return 0 if any(not each.trouble for each in runtimes) else 1


def _runtimes(spec: SandboxSpec) -> Iterator[Finding]:
    yield Finding(f"docker, image {spec.image}", docker_runtime.probe(spec) or "")
    yield Finding("bubblewrap", bubblewrap.probe(spec) or "")


def _limits() -> Finding:
    what = "control groups for bubblewrap"
    try:
        cgroups.find()
    except cgroups.CgroupsUnavailable as error:
        return Finding(what, f"{error}; without, the runner itself watches over memory")
    return Finding(what, "")


def _service(url: str, token: str | None) -> Finding:
    what = f"the service at {url}"
    try:
        with SandboxClient(url, token) as client:
            client.nodes()
    except (SandboxError, ValueError, PermissionError) as error:
        return Finding(what, str(error))
    return Finding(what, "")
