"""Whether the folders of a run can be written as it writes them, and have room."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import jax

from ale_jax.files import write_atomically
from ale_jax.learn.checkpoint import bytes_to_come, complete_checkpoints, state_bytes
from ale_jax.model.sharding import MeshShape, abstract_mesh, mesh_sizes
from ale_jax.system.config import RunConfig
from ale_jax.system.doctor.findings import Finding, fail, ok
from ale_jax.system.plan import GIB
from ale_jax.system.states import abstract_whole
from ale_jax.system.workdir import CHECKPOINTS_DIR


def check_folder(name: str, folder: Path, remedy: str) -> Finding:
    """Whether files in `folder` can be written, synchronized, replaced and claimed by a lease, and
    folders renamed. Tries it in the folder, or where that would be made, and leaves nothing there.
    """
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


def check_room(folder: Path, keep: int, each: int) -> Finding:
    """Whether the disk has room for the checkpoints of a run, as the run itself asks when it starts
    (`Checkpoints.require_room`). each: bytes of a checkpoint."""
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
    """Bytes of the state in a checkpoint of all processes, without making it."""
    # With a tokenizer of its own, the vocabulary is only known when that is loaded.
    policy = config.policy_shape(config.tokenizer.vocab_size)
    whole = abstract_whole(config, policy, abstract_mesh(mesh_sizes(MeshShape(), 1)))
    return state_bytes(whole)


def existing(folder: Path) -> Path:
    """`folder`, or the nearest above it that exists."""
    return next(each for each in (folder, *folder.parents) if each.exists())


def _size(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / (1 << 20):.1f} MiB"
