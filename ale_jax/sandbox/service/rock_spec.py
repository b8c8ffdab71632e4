"""What rl-rock asks for, as a spec of ours."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

from ale_jax.sandbox.pool.api import StartRequest
from ale_jax.sandbox.spec import SandboxSpec

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
MB = {"": 2**-20, "k": 2**-10, "m": 1, "g": 2**10, "t": 2**20}
MIN_FILES_MB = 1
# Meaningless here, or what the SDK always sends.
IGNORED = ("auto_clear_time", "startup_timeout", "limit_cpus", "pull", "auto_delete_seconds")
READ = ("image", "auto_clear_time_minutes", "memory", "cpus", "sandbox_id", "use_kata_runtime")
# What would be a lie to accept, and the value that asks for nothing.
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

    max_*: more is refused. command_seconds: of a command that names no limit.
    """

    images: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: {"python:3.11": "ale-shell"}
    )
    writable: tuple[str, ...] = ("/root", "/home", "/opt")
    max_cpus: float = 16.0
    max_memory_mb: int = 64 << 10
    max_disk_mb: int = 256 << 10
    pids: int = 1024
    command_seconds: float = 150.0
    output_bytes: int = 1 << 20


def start_request(body: Mapping[str, Any], id: str, options: RockOptions) -> StartRequest:
    """Errors: ValueError, for a field that nobody knows and for what cannot be granted.

    ROCK's disk is the container's file system. Here files lie in memory, so that they may take
    no more than the lesser of both; root may write to `options.writable`, /work and /tmp.
    """
    for name, value in body.items():
        if name in REFUSED and value not in (None, ""):
            raise ValueError(f"{name} {value!r:.80}: {REFUSED[name]}")
        if name not in (*READ, *IGNORED, *REFUSED, "image_os", "disk"):
            raise ValueError(f"there is no field {name!r:.80}")
    if body.get("image_os") not in (None, "linux"):
        raise ValueError(f"image_os {body['image_os']!r:.80}: only linux is offered")
    memory_mb = megabytes("memory", body.get("memory") or "8g", options.max_memory_mb)
    disk_mb = megabytes("disk", body.get("disk") or "50G", options.max_disk_mb)
    image = _text(body, "image")
    spec = SandboxSpec(
        image=options.images.get(image, image),
        runtime="kata" if body.get("use_kata_runtime") else "runc",
        user="root",
        cpus=_cpus(body, options.max_cpus),
        memory_mb=memory_mb,
        pids=options.pids,
        files_mb=max(MIN_FILES_MB, min(disk_mb, memory_mb)),
        writable=options.writable,
        command_seconds=options.command_seconds,
        output_bytes=options.output_bytes,
    )
    minutes = _number(body, "auto_clear_time_minutes", 360)
    return StartRequest(spec, id=id, labels={"rock.image": image}, idle_seconds=60.0 * minutes)


def megabytes(name: str, text: Any, limit: int) -> int:
    """Of "8g", "512m", "50G", "1024" (bytes). Errors: ValueError."""
    match = SIZE.fullmatch(text.strip()) if isinstance(text, str) else None
    if not match:
        raise ValueError(f'{name} {text!r:.80} must be a size such as "8g"')
    size = math.ceil(float(match[1]) * MB[match[2].lower()])
    if size > limit:
        raise ValueError(f"{name} {text!r:.80} is more than the {limit} MB that are allowed")
    return size


def _cpus(body: Mapping[str, Any], limit: float) -> float:
    wanted = _number(body, "limit_cpus", None) or _number(body, "cpus", 2)
    if not 0 < wanted <= limit:
        raise ValueError(f"cpus {wanted:g} must be more than 0 and at most {limit:g}")
    return wanted


def _number(body: Mapping[str, Any], name: str, default: float | None) -> float | None:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise ValueError(f"{name} {value!r:.80} must be a number, 0 or more")
    return float(value)


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} {value!r:.80} must be a text")
    return value
