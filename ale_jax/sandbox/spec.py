"""What a sandbox is and what it may use, as a record that converts to and from JSON."""

from __future__ import annotations

import dataclasses
import difflib
import json
import posixpath
import re
import typing
from collections.abc import Mapping
from typing import Any

from ale_jax.config.setting import Settings, section, setting
from ale_jax.sandbox.egress.policy import EgressPolicy

NO_NETWORK = EgressPolicy()
USERS = ("agent", "root")
# Capabilities of user "root": those that an installer or an unpacked archive needs.
ROOT_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETUID", "SETGID", "KILL")
OCI_RUNTIMES = ("runc", "runsc", "kata")
WORK, TMP, ETC, SHM = "/work", "/tmp", "/etc", "/dev/shm"
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
IMAGE = re.compile(r"[a-z0-9][a-z0-9._/:@-]{0,254}")
DATASETS = "/data"  # where data sets are, each in a directory with its name
DATASET = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
MAX_DATASETS = 64
MIN_DISK_MB = 16
MIN_CPUS = 0.01  # 1 ms of every 100 ms (cpu.max)
# Beyond what any host has; sums and products of such numbers stay exact.
MOST_MB, MOST_PIDS, MOST_CPUS = 1 << 30, 1 << 22, 1 << 16
# A pool shows the specs of all its sandboxes in one answer. Also below what execve(2) takes.
MAX_TEXT_BYTES = 64 << 10
FILES_PER_MB = 64  # a file costs 1.2 KiB, so 8 % of memory_mb for each writable directory
# System directories. A writable directory may be neither one of them nor a parent of one.
SYSTEM = ("/bin", "/dev", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/sbin", "/sys", "/usr")
KERNEL = ("/dev/", "/proc/", "/sys/")
SHM = "/dev/shm"  # writable in every sandbox; not part of a snapshot


@dataclasses.dataclass(frozen=True)
class SandboxSpec(Settings):
    """What a sandbox is and may use. A limit that the host cannot enforce is an error at start."""

    OWNER = "sandbox "

    image: str = setting(
        "ale-shell",
        "name of the image (Docker, Kubernetes). On bubblewrap, the default one stands for the "
        "host's own /usr, which is read-only, and others are refused.",
    )
    runtime: str = setting(
        "runc",
        'the OCI runtime that Docker uses: "runc", or "runsc" (gVisor) or "kata" for a separate '
        "kernel. Pods of Kubernetes have one of these two.",
        choices=OCI_RUNTIMES,
    )
    user: str = setting(
        "agent",
        'the agent\'s user inside: "agent" without privileges, or "root" with only the '
        "capabilities that an installer needs (CHOWN, DAC_OVERRIDE, FOWNER, SETUID, SETGID, "
        "KILL).",
        choices=USERS,
    )
    cpus: float = setting(
        0.0,
        "number of CPUs that it may keep busy; 0 for no limit.",
        at_least=0,
        at_most=MOST_CPUS,
        remedy="0 is no limit",
    )
    memory_mb: int = setting(
        256,
        "memory of all its processes together; there is no swap.",
        at_least=16,
        at_most=MOST_MB,
    )
    pids: int = setting(
        64,
        "maximum number of processes and threads at a time.",
        at_least=8,
        at_most=MOST_PIDS,
    )
    files_mb: int = setting(
        16,
        "size of each writable directory, and of /dev/shm. Files are kept in memory, so all of "
        "them together must fit into memory_mb.",
        at_least=1,
    )
    disk_mb: int = setting(
        0,
        "0: writable directories are in memory, and all else is read-only. Otherwise the whole "
        'root is on disk and may hold this much besides the image: user "root" may change all of '
        'it, "agent" what belongs to it. Only bubblewrap, run as root, has this; `files_mb` and '
        "`max_files` then only limit what is transferred at once.",
        at_least=0,
        at_most=MOST_MB,
    )
    writable: tuple[str, ...] = setting(
        (),
        "writable directories besides /work and /tmp. They are in memory; everything else is "
        "read-only. The image's contents of each are copied into it at the start. Each holds at "
        'most `max_files` files. "/etc" requires user "root", which can then add users, but can '
        "also put code into everything that starts later, including verifiers.",
    )
    env: tuple[tuple[str, str], ...] = setting(
        (),
        "further environment variables, each (name, value). With `writable` and `network.allow` at "
        "most MAX_TEXT_BYTES of JSON.",
    )
    datasets: tuple[str, ...] = setting(
        (),
        f"names of data sets that the host's operator offers: read-only in {DATASETS}/NAME, and "
        "the same files for all sandboxes. Others are refused.",
    )
    network: EgressPolicy = section(EgressPolicy)
    command_seconds: float = setting(
        10.0,
        "default time limit of a command. When it expires, the command is interrupted, and "
        "everything that it started is killed.",
        above=0,
    )
    output_bytes: int = setting(
        8192,
        "how much of a command's output is kept (head and tail; the middle is omitted).",
        at_least=64,
    )
    ale_agent: bool = setting(
        False,
        "the project's own agent is in it, read-only, as /opt/ale-agent/ale-agent. Only "
        "bubblewrap without `disk_mb` has this; where there are images, it belongs in the image.",
    )

    def __post_init__(self) -> None:
        if not IMAGE.fullmatch(self.image):
            raise ValueError(f"sandbox image {self.image!r:.80} is not a valid image name")
        super().__post_init__()
        if 0 < self.cpus < MIN_CPUS:
            raise ValueError(
                f"sandbox cpus {self.cpus} must be 0 (no limit) or at least {MIN_CPUS}: the kernel"
                " gives out no smaller share"
            )
        if 0 < self.disk_mb < MIN_DISK_MB:
            raise ValueError(
                f"sandbox disk_mb {self.disk_mb} must be 0 (in memory) or at least {MIN_DISK_MB}"
            )
        size = len(json.dumps([self.env, self.writable, self.network.allow]))
        if size > MAX_TEXT_BYTES:
            raise ValueError(
                f"sandbox env, writable and network.allow have {size} bytes of JSON: use at most"
                f" {MAX_TEXT_BYTES}, and put long values into files"
            )
        for path in self.writable:
            _check_writable(path, self.user)
        _check_datasets(self.datasets, self.writable)
        directories = len(self.parts) + 1
        if directories * self.files_mb > self.memory_mb:
            raise ValueError(
                f"sandbox files_mb {self.files_mb} for each of {directories} writable directories "
                f"(with {SHM}) is more than memory_mb {self.memory_mb}, in which files are kept: "
                f"use at most {self.memory_mb // directories}, or at least "
                f"{directories * self.files_mb} MB of memory"
            )
        for name, value in self.env:
            if not (VARIABLE.fullmatch(name) and _is_passable(value)):
                raise ValueError(
                    f"sandbox env {name!r:.80} must be a variable name with a value without NUL"
                    " and lone surrogates"
                )

    @property
    def parts(self) -> dict[str, int]:
        """The writable directories, each with its mode."""
        own = (path for path in self.writable if path != SHM)
        return dict.fromkeys((WORK, *own), 0o755) | {TMP: 0o1777}

    @property
    def max_files(self) -> int:
        """Maximum number of files in each writable directory, including subdirectories.

        The kernel keeps metadata of each file in memory, even of an empty one, and killing
        processes does not free it.
        """
        return FILES_PER_MB * self.memory_mb

    @property
    def archive_bytes(self) -> int:
        """Maximum size of an archive of the writable directories."""
        # Sparse files stay sparse. Headers and padding of small files take 1 KiB each, hence the 2.
        return 2 * len(self.parts) * self.files_mb << 20

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SandboxSpec:
        """The inverse of `to_json`; missing fields get their defaults.

        Errors: ValueError for an unknown field (suggests the nearest name) or a wrong type.
        """
        return _from_json(cls, values, "sandbox")

    def key(self) -> str:
        """A key that is equal for equal specs, used to name a pool of identical sandboxes."""
        return json.dumps(self.to_json(), sort_keys=True)


def _is_passable(text: str) -> bool:
    """Whether a program can be started with it as an argument or in a variable."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False


def _check_writable(path: str, user: str) -> None:
    if not _is_passable(path):
        raise ValueError(f"sandbox writable {path!a:.80} has a NUL or a lone surrogate: rename it")
    # POSIX leaves to the system what two slashes at the beginning mean; Linux ignores one.
    is_absolute = path.startswith("/") and not path.startswith("//") and path != "/"
    if not is_absolute or posixpath.normpath(path) != path:
        raise ValueError(f"sandbox writable {path!r:.80} must be an absolute path below /")
    system = SYSTEM if user == "root" else (*SYSTEM, ETC)
    above = any(path == part or part.startswith(f"{path}/") for part in system)
    if above or (path.startswith(KERNEL) and path != SHM):
        raise ValueError(f"sandbox writable {path!r:.80} is part of the system: choose another")


def _check_datasets(names: tuple[str, ...], writable: tuple[str, ...]) -> None:
    for name in names:
        if not DATASET.fullmatch(name):
            raise ValueError(f"sandbox datasets {name!a:.80} must be a name such as wiki-2025")
    if len(set(names)) != len(names) or len(names) > MAX_DATASETS:
        raise ValueError(
            f"sandbox datasets {names!r:.200}: name each once, and at most {MAX_DATASETS}"
        )
    for path in writable:
        if names and f"{path}/".startswith(f"{DATASETS}/"):
            raise ValueError(
                f"sandbox writable {path!r:.80} is where the data sets are: choose another"
            )


def _from_json(record: type, values: Any, path: str) -> Any:
    kinds = typing.get_type_hints(record)
    if not isinstance(values, Mapping):
        raise ValueError(f"{path} {values!r:.80} must be an object with {', '.join(kinds)}")
    for name in values:
        if name not in kinds:
            near = difflib.get_close_matches(str(name), kinds, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose among {', '.join(kinds)}"
            raise ValueError(f"{path} has no field {name!r:.80}: {hint}")
    return record(**{n: _convert(kinds[n], v, f"{path} {n}") for n, v in values.items()})


def _convert(kind: Any, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _from_json(kind, value, path)
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{path} {value!r:.80} must be a list")
        item, *rest = typing.get_args(kind)
        if rest != [...] and len(value) != 1 + len(rest):
            raise ValueError(f"{path} {value!r:.80} must have {1 + len(rest)} items")
        return tuple(_convert(item, each, path) for each in value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"{path} {value!r:.80} must be {kind.__name__}")
    return value
