"""The tables of task.toml that say where something runs: machine, network, health."""

from __future__ import annotations

import dataclasses
import posixpath
import re

from ale_jax.sandbox.spec import IMAGE
from ale_jax.worlds.bridges.harbor.fields import Fields
from ale_jax.worlds.bridges.harbor.records import ALLOWLIST, NO_NETWORK, PUBLIC, Health, Reach

MODES = (PUBLIC, NO_NETWORK, ALLOWLIST)
SIZE = re.compile(r"(\d+(?:\.\d+)?)([GMK])", re.IGNORECASE)
MB = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}
NOT_HERE = {
    "gpus": "asks for GPUs, which no sandbox has",
    "gpu_types": "asks for GPUs, which no sandbox has",
    "tpu": "asks for a TPU, which no sandbox has",
    "mcp_servers": "asks for servers of tools, and the policy has none but its shell",
    "skills_dir": "asks for skills, which the policy does not read",
}


@dataclasses.dataclass(frozen=True)
class Machine:
    """The table `environment`, or `verifier.environment`."""

    image: str
    workdir: str
    env: dict[str, str]
    cpus: float
    memory_mb: int
    storage_mb: int
    reach: Reach
    health: Health | None


def read_machine(table: Fields) -> Machine:
    """Returns a table `environment`."""
    for field, why in NOT_HERE.items():
        table.refuse(field, why, but=(0,))
    if table.text("os", "linux").lower() != "linux":
        raise table.wrong("os", "cannot be played: sandboxes are of Linux")
    image = table.text("docker_image")
    if image and not IMAGE.fullmatch(image):
        raise table.wrong("docker_image", "is not a valid image name")
    workdir = table.text("workdir")
    if workdir and (not workdir.startswith("/") or posixpath.normpath(workdir) != workdir):
        raise table.wrong("workdir", "must be an absolute path")
    table.seconds("build_timeout_sec", 600.0)  # nothing is built here
    found = Machine(
        image=image,
        workdir=workdir,
        env=table.variables("env"),
        cpus=table.number("cpus"),
        memory_mb=_megabytes(table, "memory"),
        storage_mb=_megabytes(table, "storage"),
        reach=_baseline(table),
        health=read_health(table),
    )
    table.close()
    return found


def check_alike(verifiers: Machine, agents: Machine, path: str) -> None:
    """Refuses a verifier's sandbox of another size than the agent's, by its field."""
    for field in ("cpus", "memory_mb", "storage_mb"):
        wanted, given = getattr(verifiers, field), getattr(agents, field)
        if wanted and wanted != given:
            raise ValueError(
                f"{path}.{field} {wanted!r:.80} differs from environment.{field}: a separate "
                "verifier has as much as the policy"
            )


def read_health(parent: Fields) -> Health | None:
    """Returns the `healthcheck` of a table, if it has one."""
    table = parent.table("healthcheck")
    if not parent.has("healthcheck"):
        return None
    found = Health(
        command=read_command(table),
        interval=table.number("interval_sec", 5.0),
        timeout=table.seconds("timeout_sec", 30.0),
        start_period=table.number("start_period_sec", 0.0),
        start_interval=table.number("start_interval_sec", 5.0),
        retries=table.whole("retries", 3),
    )
    table.close()
    return found


def read_command(table: Fields) -> str:
    """Returns the `command` of a table, which must be there."""
    command = table.text("command")
    if not command or "\0" in command:
        raise table.wrong("command", "must be a command for bash")
    return command


def _baseline(table: Fields) -> Reach:
    found = read_reach(table)
    permitted = table.raw("allow_internet")
    if permitted is not None and not isinstance(permitted, bool):
        raise table.wrong("allow_internet", "must be true or false")
    if found is None and permitted is False:
        return Reach(NO_NETWORK, (), table.name("allow_internet"))
    return found or Reach(PUBLIC, (), table.name("network_mode"))


def read_reach(table: Fields) -> Reach | None:
    """Returns what a table says of the network; None if it says nothing."""
    mode, hosts = table.choice("network_mode", MODES), table.texts("allowed_hosts")
    if hosts and mode != ALLOWLIST:
        raise table.wrong("allowed_hosts", f"needs network_mode {ALLOWLIST!r}")
    for host in hosts:
        if "/" in host:
            raise table.wrong("allowed_hosts", "has a range of addresses or a path: name each host")
    if not mode:
        return None
    clean = tuple(host.strip().lower().rstrip(".") for host in hosts)
    field = table.name("allowed_hosts" if hosts else "network_mode")
    found = Reach(mode, clean, field)
    found.check()
    return found


def _megabytes(table: Fields, field: str) -> int:
    """Returns `field`_mb, or what `field` says, as older files have it."""
    found = table.whole(f"{field}_mb")
    old = table.text(field)
    if not old:
        return found
    size = SIZE.fullmatch(old.strip())
    if size is None:
        raise table.wrong(field, "must be a size such as 2G or 512M")
    megabytes = int(float(size[1]) * MB[size[2].upper()])
    if found and found != megabytes:
        raise table.wrong(field, f"contradicts {field}_mb {found}")
    return megabytes
