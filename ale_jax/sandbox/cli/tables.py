"""Tables for the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ale_jax.sandbox.hub.store import Capabilities, Manifest, Verification
from ale_jax.sandbox.pool.api import NodeStatus, PoolEvent, Status
from ale_jax.sandbox.service.protocol import TenantUsage

DIGITS = 12  # of a digest


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints a table. It has no frames, and its width is limited only by a terminal's."""
    # Rich takes any output for a terminal where FORCE_COLOR is set.
    console = Console(width=None if sys.stdout.isatty() else 1000)
    table = Table(*columns, title=title, box=None, title_justify="left", pad_edge=False)
    for row in rows:
        table.add_row(*(escape(printable(str(each))) for each in row))
    console.print(table)


def sandboxes(statuses: Sequence[Status]) -> None:
    columns = ("id", "state", "cause", "generation", "node", "image", "busy", "age")
    rows = [
        (
            *(s.id, s.state, s.cause or "", s.generation, s.node, s.spec.image, s.busy),
            *(_age(s.started_at), *_usage(s)),
        )
        for s in sorted(statuses, key=lambda status: status.started_at)
    ]
    show("", (*columns, "cpu", "memory", "disk", "processes"), rows)


def _usage(status: Status) -> Sequence[object]:
    """cpu, memory, disk and processes; unknown values are empty."""
    stats, cpu = status.stats, status.cpu_percent
    if stats is None:
        return "", "", "", ""
    return (
        "" if cpu is None else f"{cpu:.0f} %",
        "" if stats.memory_bytes is None else _mb(stats.memory_bytes),
        _mb(stats.disk_bytes),
        stats.processes,
    )


def line(event: PoolEvent) -> str:
    at = datetime.fromtimestamp(event.at).astimezone().isoformat(" ", "seconds")
    fields = " ".join(f"{name}={value}" for name, value in event.fields.items())
    words = (at, event.sandbox, event.kind, event.detail, fields)
    return printable("  ".join(word for word in words if word))


def nodes(all: Sequence[NodeStatus]) -> None:
    rows = [
        (
            n.node,
            "alive" if n.alive else "lost",
            f"{n.used}/{n.slots}",
            n.ready,
            n.restarts,
            f"{n.cpu_percent:.0f} %",
            f"{_mb(n.memory_bytes)} of {_mb(n.memory_limit_bytes)}",
            f"{n.memory_reserved_mb} of {n.memory_capacity_mb} MB",
            f"{n.cpus_reserved:g} of {n.cpus_capacity:g}",
        )
        for n in all
    ]
    columns = ("node", "", "slots", "warm", "restarts", "cpu", "memory")
    show("", (*columns, "reserved", "cpus"), rows)


def usages(all: Sequence[TenantUsage]) -> None:
    """One row for each limit and total of each token."""
    rows = []
    for each in all:
        for name, limit in each.limits.items():
            most = "no limit" if limit is None else _number(limit)
            rows.append((each.tenant, name, _number(each.now.get(name)), most, ""))
        for name, total in each.total.items():
            rows.append((each.tenant, name, "", "", f"{total:.6g}"))
    show("", ("token", "", "now", "limit", "total"), rows)


def images(manifests: Iterable[Manifest]) -> None:
    rows = [
        (
            m.name,
            m.reference if m.recipe else m.image_id.removeprefix("sha256:")[:DIGITS],
            _mb(m.bytes),
            _age(m.built),
            _holdings(m.capabilities),
            _verdict(m.verified),
        )
        for m in manifests
    ]
    show("", ("image", "content", "size", "age", "contains", "tested"), rows)


def _holdings(found: Capabilities) -> str:
    programs = [name for name in ("bash", "python3", "tar", "agent") if getattr(found, name)]
    return " ".join([*programs, found.libc])


def _verdict(verified: Verification | None) -> str:
    if verified is None:
        return "never"
    told = "works" if verified.ok else f"fails: {verified.detail}"
    return f"{told} ({_age(verified.time)} ago, {verified.runtime})"


def _mb(size: int) -> str:
    return f"{size / (1 << 20):.0f} MB"


def _age(since: float) -> str:
    if not since:
        return ""
    seconds = max(0, int(time.time() - since))
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def printable(text: str) -> str:
    """Replaces control characters, so that names chosen by an agent cannot control the terminal."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.12g}"
