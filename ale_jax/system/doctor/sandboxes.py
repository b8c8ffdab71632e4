"""Whether the config's sandboxes start on this machine."""

from __future__ import annotations

import time

from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.system.config import RunConfig
from ale_jax.system.doctor.findings import Finding, fail, ok

NAME = "sandboxes"


def check_sandboxes(config: RunConfig) -> Finding:
    """Starts a sandbox and runs a command in it. Errors: SandboxError, ValueError."""
    spec = config.sandboxed
    if spec is None:
        return ok(NAME, "none, as no task needs one")
    runtime = pick_runtime(config.rollout.runtime, spec)
    began = time.monotonic()
    with runtime.start(spec, {}) as sandbox:
        result = sandbox.run("true")
    seconds = time.monotonic() - began
    if result.exit_code:
        found = f"{runtime.name}: `true` ended with {result.exit_code} ({result.output})"
        return fail(NAME, found, "try `ale-sandbox doctor`")
    limits = ", ".join(f"{name} by {how}" for name, how in runtime.capabilities.items())
    return ok(NAME, f"{runtime.name} started, used and ended one in {seconds:.1f} s ({limits})")
