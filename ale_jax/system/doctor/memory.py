"""Whether the run fits into the memory of the devices, and into that of the machine."""

from __future__ import annotations

import dataclasses

import jax

from ale_jax.sandbox.pool.accounting import memory_here_mb
from ale_jax.system.actors.cluster import OBJECT_STORE_BYTES
from ale_jax.system.checks import check_devices
from ale_jax.system.config import RunConfig
from ale_jax.system.doctor.disk import checkpoint_bytes
from ale_jax.system.doctor.findings import Finding, fail, ok, warn
from ale_jax.system.plan import GIB, Plan, make_plan


@dataclasses.dataclass(frozen=True)
class HostNeeds:
    """Bytes of the machine's memory.

    arrays: of the devices that have no memory of their own. checkpoint: the state, which is copied
    while it is written. object_store: Ray's. sandboxes: all of them at their limits.
    """

    arrays: int
    checkpoint: int
    object_store: int
    sandboxes: int

    @property
    def certain(self) -> int:
        return self.arrays + self.checkpoint + self.object_store


def check_device_memory(config: RunConfig) -> Finding:
    """Whether the rows, weights and memory of the run fit on the devices. Errors: ValueError, and
    OSError for initial weights that cannot be read."""
    check_devices(config)
    plan = plan_here(config)
    has = f" of {plan.has / GIB:.1f}" if plan.has else ""
    found = f"{plan.total / GIB:.2f}{has} GiB of each {plan.chip} at the peak, by --mode=plan"
    return ok("device memory", found if plan.has else f"{found}; it is the host's, see below")


def plan_here(config: RunConfig) -> Plan:
    here = dataclasses.replace(config.hardware, chip="", devices=0)
    return make_plan(dataclasses.replace(config, hardware=here))


def host_needs(config: RunConfig, leads: bool) -> HostNeeds:
    """leads: whether this is the first process, which has the sandboxes and Ray."""
    plan, rollout, spec = plan_here(config), config.rollout, config.sandboxed
    sandboxes = rollout.actors * rollout.episodes_per_actor if spec and leads else 0
    return HostNeeds(
        0 if plan.has else plan.total * jax.local_device_count(),
        checkpoint_bytes(config) // jax.process_count(),
        OBJECT_STORE_BYTES if leads else 0,
        sandboxes * ((spec.memory_mb if spec else 0) << 20),
    )


def check_host_memory(needs: HostNeeds, usable: int | None = None) -> Finding:
    """usable: bytes of the machine that a run may have; None: 90 % of this machine's, or of what
    the control group of this process allows."""
    name, usable = "host memory", (memory_here_mb() << 20) if usable is None else usable
    found = (
        f"{_gib(usable)} GiB are usable; needed are {_gib(needs.certain)} (arrays "
        f"{_gib(needs.arrays)}, a checkpoint on its way {_gib(needs.checkpoint)}, Ray's object "
        f"store {_gib(needs.object_store)}), and up to {_gib(needs.sandboxes)} for sandboxes"
    )
    if needs.certain > usable:
        return fail(name, found, "use a machine with more memory, or a smaller model or batch")
    if needs.certain + needs.sandboxes > usable:
        return warn(
            name,
            found,
            "if all sandboxes reach their limit, memory runs out: lower sandbox.memory_mb, "
            "rollout.actors or rollout.episodes_per_actor",
        )
    return ok(name, found)


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}"
