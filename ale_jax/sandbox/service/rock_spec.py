"""What rl-rock asks for, as a spec of ours."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping

from ale_jax.sandbox.pool.api import StartRequest
from ale_jax.sandbox.service.rock_bodies import StartBody
from ale_jax.sandbox.spec import ETC, SandboxSpec

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
MB = {"": 2**-20, "k": 2**-10, "m": 1, "g": 2**10, "t": 2**20}
MIN_FILES_MB = 1
IMAGE = "rock.image"  # the label that keeps the name of an image as it was asked for
# What would be a lie to accept.
REFUSED = {
    "num_gpus": "sandboxes have no GPU",
    "accelerator_type": "sandboxes have no GPU",
    "registry_username": "images are not pulled; build or load them on the node",
    "registry_password": "images are not pulled; build or load them on the node",
    "auto_archive_seconds": "nothing is archived; take a snapshot",
}


@dataclasses.dataclass(frozen=True)
class RockOptions:
    """images: ROCK's name of an image -> ours; another name stands for itself.

    writable: where root may write, besides /work and /tmp; in /etc it adds users.
    max_*: more is refused. command_seconds: of a command that names no limit.
    keep_seconds: how long the files of a stopped one are kept for its restart.
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


def start_request(body: StartBody, id: str, options: RockOptions) -> StartRequest:
    """Errors: ValueError for what cannot be granted.

    ROCK's disk is the container's file system. Here files lie in memory, so that they may take
    no more than the lesser of both.
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
        files_mb=max(MIN_FILES_MB, min(disk_mb, memory_mb)),
        writable=options.writable,
        command_seconds=options.command_seconds,
        output_bytes=options.output_bytes,
    )
    idle_seconds = 60.0 * body.auto_clear_time_minutes
    return StartRequest(spec, id=id, labels={IMAGE: body.image}, idle_seconds=idle_seconds)


def megabytes(name: str, text: str, limit: int) -> int:
    """Of "8g", "512m", "50G", "1024" (bytes). Errors: ValueError."""
    match = SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError(f'{name} {text!r:.80} must be a size such as "8g"')
    size = math.ceil(float(match[1]) * MB[match[2].lower()])
    if size > limit:
        raise ValueError(f"{name} {text!r:.80} is more than the {limit} MB that are allowed")
    return size
