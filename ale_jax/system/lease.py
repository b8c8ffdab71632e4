"""The lease of a folder: one process at a time may write there, on whichever machine it runs.

    FOLDER/lease/00000003

The file with the highest number is the valid lease. Its holder touches it every RENEW_S. Whoever
finds it untouched for EXPIRES_S, by its own clock, may create the next number, which only one
process can. That ends the old lease: a holder that was only stopped finds the higher number before
it writes anything else. A lock of the kernel would not do, since it does not reach other machines,
or outlives a machine that is gone.

The lease of a process that has died on this machine, or has given it back, is over at once.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import socket
import threading
import time
from pathlib import Path

from ale_jax.errors import RunFailed

LEASE_DIR = "lease"
RENEW_S = 1.0
EXPIRES_S = 20.0  # longer than a slow disk or a busy machine keeps a holder from renewing
LOOK_S = 0.2  # between two looks at the lease of another process
SAY_S = 2.0  # how long a new holder waits for the end of a lease before it says so

_log = logging.getLogger(__name__)


class Lease:
    """A lease that this process holds. `close` gives it back."""

    def __init__(self, folder: Path, number: int):
        self._folder, self.number = folder, number
        self._renewed = _now()
        self._trouble = self._lost = ""  # why it was not renewed once; why it never will be
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)
        self._thread.start()

    @classmethod
    def take(cls, folder: Path) -> Lease:
        """Takes the lease of `folder`, after the end of that of a process which shows no life.

        Raises:
          ValueError: another process holds it.
        """
        (folder / LEASE_DIR).mkdir(exist_ok=True)
        while True:
            newest = _newest(folder)
            if newest:
                _wait_for_end(folder, newest, EXPIRES_S)
            path = _path(folder, newest + 1)
            try:
                with path.open("x") as file:
                    json.dump(dataclasses.asdict(Owner.this()), file)
            except FileExistsError:
                continue  # another process was faster
            if _newest(folder) == newest + 1:
                break
            path.unlink()  # the number is an old one: others were taken and removed meanwhile
        for older in _numbers(folder):
            if older <= newest:
                _path(folder, older).unlink(missing_ok=True)
        return cls(folder, newest + 1)

    @property
    def is_held(self) -> bool:
        """Whether this process still has the lease; ask before something is written."""
        if _now() - self._renewed > EXPIRES_S / 2:
            self._renew()  # this process may have been stopped for long
        return not self._lost and _now() - self._renewed <= EXPIRES_S / 2

    def check(self) -> None:
        """Raises RunFailed if the lease is lost."""
        if not self.is_held:
            why = self._lost or self._trouble
            raise RunFailed(f"what was in progress in {self._folder} ends here: {why}")

    def moved_to(self, folder: Path) -> None:
        """Says that the folder was renamed."""
        self._folder = folder

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        if _newest(self._folder) == self.number:
            released = dataclasses.replace(Owner.this(), released=True)
            _path(self._folder, self.number).write_text(json.dumps(dataclasses.asdict(released)))

    def _keep(self) -> None:
        while not self._closing.wait(RENEW_S):
            self._renew()

    def _renew(self) -> None:
        before = _now()
        try:
            newest = _newest(self._folder)
            if newest == self.number:
                os.utime(_path(self._folder, self.number))
                self._renewed = before
            elif newest:
                owner = Owner.read(_path(self._folder, newest))
                self._lost = f"it was silent for {EXPIRES_S:.0f} s, and {owner} has taken over"
            else:
                self._lost = "its folder was removed or renamed"
        except OSError as error:  # of the file system, which may answer again
            self._trouble = f"its lease could not be renewed ({error})"


@dataclasses.dataclass(frozen=True)
class Owner:
    """Who holds a lease. machine: its boot and its namespace of process numbers, "" if unknown.
    started: of the process, in clock ticks after the boot. released: whether it gave it back."""

    host: str = ""
    machine: str = ""
    process: int = 0
    started: int = 0
    released: bool = False

    @classmethod
    def this(cls) -> Owner:
        process = os.getpid()
        return cls(socket.gethostname(), _machine(), process, _started(process) or 0)

    @classmethod
    def read(cls, path: Path) -> Owner:
        """Reads the owner; one that is not known, if it has not written its name yet."""
        try:
            values = json.loads(path.read_bytes())
            return cls(**{field.name: values[field.name] for field in dataclasses.fields(cls)})
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return cls()

    @property
    def is_gone(self) -> bool:
        """Whether it gave the lease back, or was a process of this machine that has ended."""
        here = self.machine != "" and self.machine == _machine()
        return self.released or (here and _started(self.process) != self.started)

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}" if self.host else "another process"


def require_free(folder: Path) -> None:
    """Raises ValueError if a process that lives holds the lease of `folder`.

    Looks for a moment only, and takes nothing: so that a second run is refused before it has
    imported all that it needs. The lease itself decides later.
    """
    if newest := _newest(folder):
        _wait_for_end(folder, newest, SAY_S)


def is_over(folder: Path) -> bool:
    """Returns whether a lease of `folder` was taken, and its holder has given it back, or was a
    process of this machine that has ended."""
    newest = _newest(folder)
    return newest > 0 and Owner.read(_path(folder, newest)).is_gone


def _wait_for_end(folder: Path, number: int, seconds: float) -> None:
    """Returns when lease `number` has ended, or was not renewed for so many seconds; ValueError
    once its holder shows that it lives."""
    path = _path(folder, number)
    touched, since, said = _touched(path), time.monotonic(), False
    while not (owner := Owner.read(path)).is_gone:
        quiet = time.monotonic() - since
        if quiet >= seconds:
            return
        if _touched(path) != touched:
            time.sleep(LOOK_S)  # what was touched may be half written: its name, or its end
            if not path.exists():
                return  # it has ended, and a newer one has begun
            if (owner := Owner.read(path)).is_gone:
                return
            raise ValueError(
                f"folder {folder} is in use by {owner}: wait for it, stop it, or choose another "
                "folder"
            )
        if quiet >= SAY_S and not said:
            _log.warning(
                "folder %s was in use by %s, which has been silent since: it may be taken over "
                "in %.0f s",
                *(folder, owner, seconds - quiet),
            )
            said = True
        time.sleep(LOOK_S)


def _path(folder: Path, number: int) -> Path:
    return folder / LEASE_DIR / f"{number:08d}"


def _newest(folder: Path) -> int:
    """The highest number; 0 if there is none."""
    return max(_numbers(folder), default=0)


def _numbers(folder: Path) -> list[int]:
    try:
        names = os.listdir(folder / LEASE_DIR)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [int(name) for name in names if name.isdecimal()]  # NFS adds files of its own


def _touched(path: Path) -> int | None:
    """When the lease was renewed, by the clock of its file system; None if it is not there."""
    try:
        with path.open("rb") as file:  # a network file system shows what is new when it is opened
            return os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return None


def _now() -> float:
    """Seconds, which also pass while the machine sleeps or this process is stopped."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _machine() -> str:
    """What tells apart machines, boots, and containers with process numbers of their own."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{boot.read_text().strip()} {os.readlink('/proc/self/ns/pid')}" if boot.exists() else ""


def _started(process: int) -> int | None:
    """When a process of this machine started, in clock ticks; None if it has ended."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])
