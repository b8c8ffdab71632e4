"""Checkpoints of training: written in the background, complete or discarded, verified before use.

    DIRECTORY/step_00000020/
        state_00000003/ the TrainState, by Orbax; the number is that of its writer's lease
        host.json       what the host needs to continue: cursors, phase, counters
        manifest.json   the state's folder, size and SHA-256 of every file; written last

A folder without a manifest is an interrupted save and is removed. A folder whose files do not match
the manifest is damaged: it stays as it is, and the previous checkpoint is used. A folder that
cannot be read may be whole, so it is not passed over: the error is raised, and nothing is changed.

Orbax goes on with a save that was in flight when its process was stopped, even if another process
has taken over since. It writes to a folder of its own then, which no manifest names.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import jax
import orbax.checkpoint as ocp

from ale_jax.errors import RunFailed
from ale_jax.files import read_json, write_json
from ale_jax.learn.manifest import (
    FORMAT,
    MANIFEST_FILE,
    Digests,
    file_digest,
    file_digests,
    read_manifest,
    require_format,
    require_same_files,
    state_folder,
    write_manifest,
)

HOST_FILE = "host.json"
PREFIX = "step_"
DAMAGED_SUFFIX = ".damaged"

_log = logging.getLogger(__name__)


class StateFiles(Protocol):
    """The files of the state in a checkpoint, which is a tree of arrays, or whatever names one for
    them."""

    def write(self, folder: Path, state: Any) -> None:
        """Copies the state off the devices and returns; it is written in the background."""

    def wait(self) -> None:
        """Returns when the last state is written."""

    def read(self, folder: Path, target: Any) -> Any:
        """Reads the state in `folder` into the shapes, types and shardings of `target`."""

    def digests(self, folder: Path) -> Digests:
        """Returns the digests of all files below a folder that was written. Raises OSError if one
        cannot be read."""


class Lease(Protocol):
    """The right to write to the directory. number: a process that takes over has a higher one."""

    @property
    def number(self) -> int: ...

    def check(self) -> None:
        """Raises if another process may write to the directory by now."""


class _NoLease:
    """The lease of a directory that this process alone knows."""

    number = 0

    def check(self) -> None:
        pass


class OrbaxFiles:
    """Files that Orbax writes, the parts of all processes of a run that make the same calls."""

    def __init__(self) -> None:
        self._writer = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())

    def write(self, folder: Path, state: Any) -> None:
        """Copies the state off the devices and returns; Orbax writes it in the background."""
        self._writer.save(folder, args=ocp.args.StandardSave(state))

    def wait(self) -> None:
        """Returns when the last state is written. Raises what Orbax raised meanwhile."""
        self._writer.wait_until_finished()

    def read(self, folder: Path, target: Any) -> Any:
        """Reads a state. target: as in `Checkpoints.restore_latest`."""
        abstract = jax.tree.map(_abstract, target)
        return self._writer.restore(folder, args=ocp.args.StandardRestore(abstract))

    def digests(self, folder: Path) -> Digests:
        """Returns the digests of all files below `folder`, whichever process wrote them."""
        return file_digests(folder)

    def close(self) -> None:
        """Ends Orbax's threads, once the last state is written."""
        self._writer.close()


class Checkpoints:
    """The `keep` newest checkpoints of one run. To be used from one thread only.

    record: called with each event, like `EventLog.record` (kind, detail, **fields), from any
    thread.
    """

    def __init__(
        self,
        directory: Path,
        keep: int,
        record: Callable[..., None],
        files: StateFiles | None = None,
        lease: Lease | None = None,
    ):
        """files: writes and reads the states; Orbax in this process alone if None. lease: None if
        no other process can know the directory."""
        assert keep >= 1, keep
        self._directory = Path(directory).resolve()
        self._directory.mkdir(parents=True, exist_ok=True)
        for folder in _folders(self._directory):
            if not (folder / MANIFEST_FILE).exists():  # an interrupted save or removal
                shutil.rmtree(folder)
        self._keep = keep
        self._record, self._lease = record, lease or _NoLease()
        self._damaged: set[Path] = set()
        self._own = contextlib.ExitStack()  # what is closed with this object
        self._files: StateFiles = files or self._own.enter_context(closing(OrbaxFiles()))
        self._finisher = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._finishing: Future[None] | None = None
        self._begun: Path | None = None  # the last save
        self._failed: Path | None = None  # the last one that failed in the background

    def save(self, step: int, state: Any, host: Mapping[str, Any]) -> None:
        """Copies the state off the devices and returns; it is written in the background.

        Waits for the previous save. Nothing is left to do if that was of the same step and failed
        only once it was complete, in removing an older one or in recording it. `state` is a tree of
        arrays, for example a TrainState; the caller may donate it at once. `host` is JSON: dicts
        with text keys, lists, text, finite numbers (ints of 64 bits), bools, None. Tuples are
        restored as lists.

        Raises:
          ValueError: JSON would change `host`.
          OSError: this save or the previous one could not be written; older checkpoints remain.
        """
        self.wait()
        folder = self._folder(step)
        if folder in self._damaged:
            self._set_aside(folder)
        if (folder / MANIFEST_FILE).exists():
            assert folder == self._failed, f"step {step} is saved already"
            return
        self._begun = folder
        try:
            shutil.rmtree(folder, ignore_errors=True)  # left by an interrupted save
            write_json(folder / HOST_FILE, host, indent=None)
            if read_json(folder / HOST_FILE) != _tuples_as_lists(host):
                raise ValueError(f"host state {host!r:.200} is not plain JSON")
            self._files.write(folder / self._state_name, state)
        except OSError as error:
            self._lease.check()  # whoever took over has removed the folder
            raise self._not_written(error) from error
        self._finishing = self._finisher.submit(self._finish, folder, time.monotonic())

    def wait(self) -> None:
        """Returns when the last save is complete.

        Raises:
          OSError: it could not be written.
          RunFailed: another process has taken over the directory.
        """
        self._lease.check()
        finishing, self._finishing = self._finishing, None
        try:
            if finishing:
                finishing.result()
        except RunFailed:
            raise
        except Exception as error:  # tensorstore reports a full disk by its own exception types
            self._failed = self._begun
            self._lease.check()
            raise self._not_written(error) from error

    def has_failed(self) -> bool:
        """Tells whether the last save is known to have failed; `wait` raises why."""
        finishing = self._finishing
        return finishing is not None and finishing.done() and finishing.exception() is not None

    def any(self) -> bool:
        """Tells whether there is a complete checkpoint; it may still be damaged."""
        return bool(self._complete())

    def steps(self) -> list[int]:
        """Returns the steps of the complete checkpoints, oldest first."""
        return list(map(_step, self._complete()))

    def require_room(self, state: Any) -> None:
        """Raises ValueError unless the disk has room for `keep` checkpoints of `state` and the one
        that is written before the oldest is removed. state: arrays, or their abstract form."""
        each = state_bytes(state)
        needed = bytes_to_come(self._keep, len(self._complete()), each)
        free = shutil.disk_usage(self._directory).free
        if free < needed:
            raise ValueError(
                f"{self._directory} has {free >> 20} MiB free, but the checkpoints to come need "
                f"{needed >> 20} MiB (checkpoint.keep {self._keep}, each {each >> 20} MiB, and one "
                "that is being written): free some space, lower checkpoint.keep, or choose another "
                "--workdir"
            )

    def restore_latest(
        self, target: Any, step: int | None = None
    ) -> tuple[int, Any, dict[str, Any]] | None:
        """Returns (step, state, host) of the newest checkpoint that is intact, or of that of a
        step; None if none was saved.

        target: a state of the same shapes, or its jax.ShapeDtypeStruct with shardings. The restored
        arrays have the shardings of the target's.

        Raises:
          ValueError: checkpoints exist and all are damaged; or one is intact but has another format
            or is of another model.
          OSError: a checkpoint cannot be read, and may be intact.
        """
        for folder in reversed(self._complete()):
            if step is not None and step != _step(folder):
                continue
            try:
                manifest = self._verify(folder)
                host = read_json(folder / HOST_FILE)
            except ValueError as error:
                self._note_damage(folder, str(error))
                continue
            except OSError as error:
                raise _not_read(folder, error) from error
            require_format(folder, manifest)
            state = self._read_state(folder, target)
            return manifest["step"], state, host
        if self._damaged:
            raise ValueError(
                f"all checkpoints in {self._directory} are damaged (steps "
                f"{', '.join(str(_step(each)) for each in sorted(self._damaged))}); nothing was "
                "changed: bring one back from a backup, or give --overwrite to start a new run"
            )
        return None

    def close(self) -> None:
        """Waits for the last save. Raises OSError if it could not be written."""
        try:
            self.wait()
        finally:
            self._finisher.shutdown()
            self._own.close()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def _state_name(self) -> str:
        return f"state_{self._lease.number:08d}"

    def _folder(self, step: int) -> Path:
        return self._directory / f"{PREFIX}{step:08d}"

    def _complete(self) -> list[Path]:
        """Folders with a manifest that are not known to be damaged, oldest first."""
        return [f for f in complete_checkpoints(self._directory) if f not in self._damaged]

    def _finish(self, folder: Path, started: float) -> None:
        """Completes a save after Orbax has written the state; runs in its own thread."""
        self._files.wait()
        digests = self._digests(folder, self._state_name)
        # Whoever took over meanwhile has removed this folder as an interrupted save, or will.
        self._lease.check()
        write_manifest(folder, _step(folder), self._state_name, digests)
        for old in self._complete()[: -self._keep]:
            (old / MANIFEST_FILE).unlink()  # first, or half-deleted it would look complete
            shutil.rmtree(old)
        step, seconds = _step(folder), round(time.monotonic() - started, 3)
        self._record("checkpoint_saved", f"step {step}", step=step, save_seconds=seconds)

    def _verify(self, folder: Path) -> dict[str, Any]:
        """Returns the manifest. Raises ValueError unless it and every file that it lists are as
        they were written. The files of another format are not looked at."""
        manifest = read_manifest(folder, _step(folder))
        if manifest["format"] == FORMAT:
            require_same_files(folder, manifest, self._digests(folder, manifest["state"]))
        return manifest

    def _digests(self, folder: Path, state_name: str) -> Digests:
        of_state = self._files.digests(folder / state_name)
        found = {f"{state_name}/{name}": digest for name, digest in of_state.items()}
        if (folder / HOST_FILE).is_file():
            found[HOST_FILE] = file_digest(folder / HOST_FILE)
        return found

    def _read_state(self, folder: Path, target: Any) -> Any:
        try:
            return self._files.read(state_folder(folder), target)
        except ValueError as error:
            raise ValueError(
                f"{folder} does not fit the model and optimizer of this config: use those that "
                f"wrote it, or start a new run ({error!s:.300})"
            ) from error

    def _note_damage(self, folder: Path, reason: str) -> None:
        _log.warning("damaged checkpoint, using the previous one: %s", reason)
        self._record("checkpoint_damaged", reason, step=_step(folder))
        self._damaged.add(folder)

    def _set_aside(self, folder: Path) -> None:
        """Makes way for a new checkpoint of the same step."""
        aside = folder.with_name(folder.name + DAMAGED_SUFFIX)
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
        self._damaged.remove(folder)

    def _not_written(self, error: Exception) -> OSError:
        free = shutil.disk_usage(self._directory).free
        return OSError(
            errno.ENOSPC if "space" in str(error).lower() else errno.EIO,
            f"a checkpoint could not be written; {free >> 20} MiB of disk space are free "
            f"({' '.join(str(error).split())[:300]})",
            str(self._directory),
        )


def complete_checkpoints(directory: Path) -> list[Path]:
    """Returns the folders with a manifest, oldest first. They may be damaged."""
    return [folder for folder in _folders(directory) if (folder / MANIFEST_FILE).exists()]


def state_bytes(state: Any) -> int:
    """Returns the bytes of arrays, or of their abstract form, as a checkpoint holds them."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))


def bytes_to_come(keep: int, complete: int, each: int) -> int:
    """Returns the bytes that a run still writes before it removes its oldest checkpoint. complete:
    how many there are of the `keep`, which have `each` bytes.

        >>> bytes_to_come(keep=2, complete=0, each=10), bytes_to_come(keep=2, complete=2, each=10)
        (30, 10)
    """
    return max(keep + 1 - complete, 1) * each


def _folders(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"{PREFIX}*[0-9]"), key=_step)


def _not_read(folder: Path, error: OSError) -> OSError:
    return OSError(
        error.errno,
        f"the checkpoint of step {_step(folder)} cannot be read ({error.strerror or error}); "
        "nothing was changed: check the disk, then the same command continues from it",
        str(folder),
    )


def _tuples_as_lists(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _tuples_as_lists(inner) for key, inner in value.items()}
    return [_tuples_as_lists(v) for v in value] if isinstance(value, list | tuple) else value


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix(PREFIX))
