"""ROCK's requests and states: bodies as rl-rock 1.11 sends them, the spec that they ask for, and
the status of a sandbox in ROCK's terms (its SandboxStatusResponse).

Unknown fields are ignored, except in a start request, where one could be a limit that would not be
enforced.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ale_jax.sandbox.api import ImageMissing
from ale_jax.sandbox.pool.api import StartRequest, State, Status
from ale_jax.sandbox.service.bodies import ID
from ale_jax.sandbox.spec import ETC, SandboxSpec

MAX_IDS = 2000
# No others: some of Python's codecs take time quadratic in the length of the text.
Encoding = Literal["utf-8", "utf8", "ascii", "latin-1", "iso-8859-1", "utf-16", "gbk", "gb18030"]
Seconds = Annotated[float, Field(gt=0)]
Env = dict[str, str] | None


class RockBody(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, allow_inf_nan=False)


class RockStartBody(RockBody):
    model_config = ConfigDict(extra="forbid")

    image: str = Field(min_length=1)
    image_os: Literal["linux"] | None = None
    sandbox_id: str | None = Field(None, pattern=f"{ID}|^$")
    cpus: Annotated[float, Field(gt=0)] = 2.0
    limit_cpus: Annotated[float, Field(gt=0)] | None = None
    memory: str = "8g"
    disk: str | None = None
    auto_clear_time_minutes: float = Field(360.0, ge=0, lt=1e9)
    auto_delete_seconds: float | None = Field(None, ge=0)
    use_kata_runtime: bool = False
    # Ignored: the pool has its own settings.
    auto_clear_time: Any = None
    startup_timeout: Any = None
    pull: Any = None
    # Refused unless empty: see REFUSED.
    num_gpus: Any = None
    accelerator_type: Any = None
    registry_username: Any = None
    registry_password: Any = None
    auto_archive_seconds: Any = None


class RockSandboxBody(RockBody):
    sandbox_id: str = Field(min_length=1, max_length=256)


class BatchBody(RockBody):
    sandbox_ids: list[str] = Field(max_length=MAX_IDS)


class ExecuteBody(RockSandboxBody):
    command: str | list[str]
    timeout: Seconds | None = None
    cwd: str | None = None
    env: Env = None


class RockSessionBody(RockSandboxBody):
    session: str = "default"


class CreateSessionBody(RockSessionBody):
    env: Env = None
    startup_source: list[str] = Field(default_factory=list)
    remote_user: str | None = None


class RockRunBody(RockSessionBody):
    command: str
    timeout: Seconds | None = None
    check: Literal["silent", "raise", "ignore"] = "raise"


class ReadFileBody(RockSandboxBody):
    path: str
    encoding: Encoding | None = None
    errors: Literal["strict", "ignore", "replace", "backslashreplace"] | None = None


class WriteFileBody(RockSandboxBody):
    path: str
    content: str


class UploadForm(RockSandboxBody):
    target_path: str
    file: bytes


def parse(kind: type[RockBody], values: Any) -> RockBody:
    """Errors: ValueError, which names the field."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(each) for each in first["loc"])
        raise ValueError(f"{where or 'body'}: {first['msg']}") from error


SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
MB = {"": 2**-20, "k": 2**-10, "m": 1, "g": 2**10, "t": 2**20}
MIN_FILES_MB = 1
IMAGE = "rock.image"  # the label with the name of the image as requested
# Fields that cannot be honoured, and why.
REFUSED = {
    "num_gpus": "sandboxes have no GPU",
    "accelerator_type": "sandboxes have no GPU",
    "registry_username": "images are not pulled; build or load them on the node",
    "registry_password": "images are not pulled; build or load them on the node",
    "auto_archive_seconds": "nothing is archived; take a snapshot",
}


@dataclasses.dataclass(frozen=True)
class RockOptions:
    """images: maps ROCK's names of images to ours; other names are used unchanged.

    writable: where root may write, besides /work and /tmp; in /etc it adds users.
    max_*: requests for more are refused. command_seconds: limit of a command that sets none.
    keep_seconds: how long the files of a stopped sandbox are kept for a restart.
    """

    images: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: {"python:3.11": "ale-shell"}
    )
    writable: tuple[str, ...] = ("/root", "/home", "/opt", ETC)
    max_cpus: float = 16.0
    max_memory_mb: int = 64 << 10
    max_disk_mb: int = 256 << 10
    pids: int = 1024
    command_seconds: float = 150.0
    output_bytes: int = 1 << 20
    keep_seconds: float = 600.0


def start_request(body: RockStartBody, id: str, options: RockOptions) -> StartRequest:
    """Errors: ValueError for anything that cannot be granted.

    ROCK's disk is the container's file system. Here files are kept in memory, so the limit on their
    size is the lesser of disk and an equal share of the memory for each writable directory, which
    are /work, /tmp and /dev/shm besides the options'.
    """
    for name, reason in REFUSED.items():
        if (value := getattr(body, name)) not in (None, ""):
            raise ValueError(f"{name} {value!r:.80}: {reason}")
    cpus = body.limit_cpus or body.cpus
    if cpus > options.max_cpus:
        raise ValueError(f"cpus {cpus:g} must be at most {options.max_cpus:g}")
    memory_mb = megabytes("memory", body.memory, options.max_memory_mb)
    disk_mb = megabytes("disk", body.disk or "50G", options.max_disk_mb)
    spec = SandboxSpec(
        image=options.images.get(body.image, body.image),
        runtime="kata" if body.use_kata_runtime else "runc",
        user="root",
        cpus=cpus,
        memory_mb=memory_mb,
        pids=options.pids,
        files_mb=max(MIN_FILES_MB, min(disk_mb, memory_mb // (len(options.writable) + 3))),
        writable=options.writable,
        command_seconds=options.command_seconds,
        output_bytes=options.output_bytes,
    )
    idle_seconds = 60.0 * body.auto_clear_time_minutes
    return StartRequest(spec, id=id, labels={IMAGE: body.image}, idle_seconds=idle_seconds)


def megabytes(name: str, text: str, limit: int) -> int:
    """Converts "8g", "512m", "50G" or "1024" (bytes). Errors: ValueError."""
    match = SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError(f'{name} {text!r:.80} must be a size such as "8g"')
    size = math.ceil(float(match[1]) * MB[match[2].lower()])
    if size > limit:
        raise ValueError(f"{name} {text!r:.80} is more than the {limit} MB that are allowed")
    return size


WAITING, RUNNING = ("waiting", "waiting"), ("running", "in progress")
PULLED = ("success", "present")


def of_running(id: str, status: Status) -> dict[str, Any]:
    """Describes a sandbox that has been up."""
    up = status.state is State.RUNNING
    run = ("success", "running") if up else ("failed", f"{status.state}: {status.cause}")
    return {
        **_described(id, status.spec, status.labels),
        "status": _phases(PULLED, run),
        "is_alive": up,
        "state": "running" if up else "stopped",
        "host_name": status.node,
        "start_time": _time(status.started_at),
        "create_time": _time(status.history[0].at) if status.history else None,
        "state_history": [
            {
                "from_state": before.state,
                "to_state": after.state,
                "event": after.detail or str(after.state),
                "timestamp": _time(after.at),
            }
            for before, after in zip(status.history, status.history[1:])
        ],
    }


def of_starting(id: str, request: StartRequest, error: BaseException | None) -> dict[str, Any]:
    """Describes a sandbox that is not up yet, or never will be because of `error`."""
    if error is None:
        phases = _phases(RUNNING, WAITING)
    elif isinstance(error, ImageMissing):
        text = f"Failed to pull image {request.labels[IMAGE]}: {error}"
        phases = _phases(("failed", text), WAITING)
    else:
        text = f"Failed to start {request.labels[IMAGE]}: {error or 'it was stopped'}"
        phases = _phases(PULLED, ("failed", text))
    return {
        **_described(id, request.spec, request.labels),
        "status": phases,
        "is_alive": False,
        "state": "pending" if error is None else "stopped",
        "host_name": "",
    }


def _described(id: str, spec: SandboxSpec, labels: Mapping[str, str]) -> dict[str, Any]:
    return {
        "sandbox_id": id,
        "image": labels.get(IMAGE, spec.image),
        "cpus": spec.cpus,
        "memory": f"{spec.memory_mb}m",
        "disk": f"{spec.files_mb}m",
        "host_ip": "",
        "port_mapping": {},
        "user_id": labels.get("tenant"),
    }


def _phases(*states: tuple[str, str]) -> dict[str, Any]:
    names = ("image_pull", "docker_run")
    return {n: {"status": s, "message": m} for n, (s, m) in zip(names, states, strict=True)}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
