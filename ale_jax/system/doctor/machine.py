"""What a run needs of the machine besides its devices: open files, memory, room on the disk,
folders that can be written as a run writes them, and sandboxes."""

from __future__ import annotations

import dataclasses
import os
import resource
import shutil
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import jax

from ale_jax.config.hardware import MeshShape
from ale_jax.config.rollout import RAY, is_elsewhere
from ale_jax.config.run import RunConfig
from ale_jax.files import write_atomically
from ale_jax.learn.checkpoint import bytes_to_come, complete_checkpoints, state_bytes
from ale_jax.model.sharding import abstract_mesh, mesh_sizes
from ale_jax.model.weights.shape import policy_shape
from ale_jax.monitor.run_files import CHECKPOINTS_DIR
from ale_jax.sandbox.datasets import Datasets
from ale_jax.sandbox.pool.accounting import memory_here_mb
from ale_jax.sandbox.pool.machines import FILES_BESIDE, FILES_EACH
from ale_jax.sandbox.runtime import login_of, runtime_of_run
from ale_jax.system import allocator
from ale_jax.system.actors.cluster import OBJECT_STORE_BYTES
from ale_jax.system.checks import check_devices
from ale_jax.system.doctor.findings import Finding, fail, ok, warn
from ale_jax.system.plan import GIB, plan_here
from ale_jax.system.states import abstract_whole
from ale_jax.system.task_checks import needs_sandbox
from ale_jax.system.workdir import RunState, require_claimable

SHM = Path("/dev/shm")


def check_open_files(conversations: int) -> Finding:
    """Checks that this process may open enough files. conversations: at once, each with a sandbox
    and connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = FILES_BESIDE + FILES_EACH * conversations
    found = f"{soft} at once, and {conversations} conversations may need {need}"
    if soft >= need:
        return ok("open files", found)
    raised = f"ulimit -n {need}"
    if hard < need:
        raised += f", after the hard limit, {hard}, was raised (LimitNOFILE= in systemd)"
    return warn("open files", found, raised)


def check_allocator() -> Finding:
    """Checks that XLA's buffers on CPUs come from tcmalloc, unless the user chose otherwise."""
    name = "allocator"
    if allocator.is_in_use():
        return ok(name, allocator.TCMALLOC)
    if not allocator.is_wanted():
        return ok(name, allocator.SYSTEM)
    remedy = "for faster steps on CPUs, install libtcmalloc-minimal4 (Debian) or gperftools-libs"
    return warn(name, allocator.SYSTEM, remedy)


def check_shared_memory(folder: Path = SHM) -> Finding:
    """Checks whether Ray's object store fits where Ray puts it."""
    free, need = shutil.disk_usage(folder).free, OBJECT_STORE_BYTES
    found = f"{free >> 20} MiB are free in {folder}, and Ray's object store takes {need >> 20}"
    if free >= need:
        return ok("shared memory", found)
    return warn(
        "shared memory",
        found,
        "Ray will use the disk, which is slower: free some, or start the container with "
        "--shm-size=1g",
    )


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
    """Checks whether the rows, weights and memory of the run fit on the devices. Errors:
    ValueError, and OSError for initial weights that cannot be read."""
    check_devices(config)
    plan = plan_here(config)
    has = f" of {plan.has / GIB:.1f}" if plan.has else ""
    found = f"{plan.total / GIB:.2f}{has} GiB of each {plan.chip} at the peak, by `plan`"
    return ok("device memory", found if plan.has else f"{found}; it is the host's, see below")


def host_needs(config: RunConfig, leads: bool) -> HostNeeds:
    """Returns what the run needs of this machine's memory. leads: whether this is the first
    process, which has the sandboxes and Ray."""
    plan, rollout = plan_here(config), config.rollout
    spec = config.sandbox if needs_sandbox(config) else None
    are_here = spec and leads and not is_elsewhere(rollout.runtime)
    sandboxes = rollout.actors * rollout.episodes_per_actor if are_here else 0
    return HostNeeds(
        0 if plan.has else sum(s.total * s.devices for s in plan.sides) // jax.process_count(),
        checkpoint_bytes(config) // jax.process_count(),
        OBJECT_STORE_BYTES if leads and config.rollout.workers == RAY else 0,
        sandboxes * ((spec.memory_mb if spec else 0) << 20),
    )


def check_host_memory(needs: HostNeeds, usable: int | None = None) -> Finding:
    """Checks that the run fits into this machine's memory. usable: bytes of the machine that a run
    may have; None: 90 % of this machine's, or of what the control group of this process allows."""
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


def check_folder(name: str, folder: Path, remedy: str) -> Finding:
    """Checks whether files in `folder` can be written, synchronized, replaced and claimed by a
    lease, and folders renamed. Tries it in the folder, or where that would be made, and leaves
    nothing there."""
    place = existing(folder)
    try:
        with tempfile.TemporaryDirectory(prefix=".ale-doctor-", dir=place) as own:
            _write_as_a_run_does(Path(own))
    except OSError as error:
        return fail(name, f"{folder} cannot be used ({error.strerror}: {error.filename})", remedy)
    where = folder if folder == place else f"{folder} (to be made in {place})"
    return ok(name, f"{where} can be written, synchronized, renamed in and leased")


def _write_as_a_run_does(folder: Path) -> None:
    """Errors: OSError."""
    file = folder / "file"
    for content in (b"old", b"new"):
        write_atomically(file, [content])
    (folder / "lease").open("x").close()
    os.utime(folder / "lease")
    (folder / "unfinished").mkdir()
    (folder / "unfinished").rename(folder / "finished")


class RunFolder(NamedTuple):
    """The folder of a run. resume, overwrite: what the command that trains would be told."""

    path: Path
    resume: bool = False
    overwrite: bool = False


def check_run(folder: RunFolder, config: RunConfig) -> Finding:
    """Checks whether the folder takes the run now. Errors: ValueError if the run would refuse it,
    and OSError."""
    state, changes = require_claimable(folder.path, config, folder.resume, folder.overwrite)
    if folder.overwrite:
        return ok("run", "a new one; what is in the folder is moved aside first (--overwrite)")
    if state is RunState.NEW:
        return ok("run", "a new one")
    if changes:
        return ok("run", f"the one in the folder goes on, with {changes}")
    if state is RunState.FINISHED:
        return ok("run", "the one in the folder, which is finished: nothing is left to do")
    return ok("run", "the one in the folder goes on")


def check_room(folder: Path, keep: int, each: int) -> Finding:
    """Checks whether the disk has room for the checkpoints of a run, as the run itself asks when it
    starts (`Checkpoints.require_room`). each: bytes of a checkpoint."""
    complete = len(complete_checkpoints(folder / CHECKPOINTS_DIR))
    needed = bytes_to_come(keep, complete, each)
    free = shutil.disk_usage(existing(folder)).free
    found = (
        f"{_size(free)} are free, and the checkpoints to come need {_size(needed)} "
        f"(checkpoint.keep {keep}, each {_size(each)}, and one that is being written)"
    )
    if free >= needed:
        return ok("disk", found)
    return fail("disk", found, "free some, lower checkpoint.keep, or choose another --workdir")


def check_compilation_cache(config: RunConfig) -> Finding:
    name = "compilation cache"
    folder = config.compilation_cache or jax.config.jax_compilation_cache_dir
    if not folder:
        return ok(name, "none: each start compiles anew (compilation_cache names a folder)")
    return check_folder(name, Path(folder).resolve(), "choose another compilation_cache")


def checkpoint_bytes(config: RunConfig) -> int:
    """Returns the bytes of the state in a checkpoint of all processes, without making it."""
    # With a tokenizer of its own, the vocabulary is only known when that is loaded.
    policy = policy_shape(config, config.tokenizer.vocab_size)
    whole = abstract_whole(config, policy, abstract_mesh(mesh_sizes(MeshShape(), 1)))
    return state_bytes(whole)


def existing(folder: Path) -> Path:
    """Returns `folder`, or the nearest above it that exists."""
    return next(each for each in (folder, *folder.parents) if each.exists())


def _size(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / (1 << 20):.1f} MiB"


def check_sandboxes(config: RunConfig) -> Finding:
    """Starts a sandbox and runs a command in it. Errors: SandboxError, ValueError."""
    name, spec = "sandboxes", config.sandbox if needs_sandbox(config) else None
    if spec is None:
        return ok(name, "none, as no task needs one")
    rollout = config.rollout
    login, datasets = login_of(rollout.runtime), Datasets.parse(rollout.datasets)
    runtime = runtime_of_run(rollout.runtime, spec, login, rollout.uplink, datasets)
    began = time.monotonic()
    with runtime.start(spec, {}) as sandbox:
        result = sandbox.run("true")
    seconds = time.monotonic() - began
    if result.exit_code:
        found = f"{runtime.name}: `true` ended with {result.exit_code} ({result.output})"
        return fail(name, found, "try `ale-sandbox doctor`")
    limits = ", ".join(f"{name} by {how}" for name, how in runtime.capabilities.items())
    return ok(name, f"{runtime.name} started, used and ended one in {seconds:.1f} s ({limits})")
