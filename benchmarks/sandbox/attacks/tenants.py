"""Attacks of one token on another, through a service over the arena's runtime."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.pool.api import PoolFull, QuotaExceeded
from ale_jax.sandbox.pool.node_pool import NodePool
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.sandbox.sdk.client import RemoteSandbox, SandboxClient
from ale_jax.sandbox.service.access import ServiceSettings, Tenant, Tokens
from ale_jax.sandbox.service.app import create_app
from ale_jax.sandbox.service.server import raise_file_limit, serve_in_thread
from ale_jax.sandbox.service.tenants import DEFAULT_QUOTA
from benchmarks.sandbox.attacks.attack import Arena, Attack, Breach, require

TENANTS = "tenants"
ATTACKER, VICTIM = "a" * 20, "v" * 20
OPTIONS = PoolOptions(slots=6, snapshot_mb=4)
CONNECTIONS, OUTPUT_MB, STREAMS = 1100, 300, 2
RATE = 2 << 20  # bytes per second, so low that a short flood exceeds it
FLOOD_S, UNDER_WAY = 1.0, 4 << 20  # bytes that were sent before the flood is timed


@dataclasses.dataclass(frozen=True)
class Service:
    url: str
    attacker: SandboxClient
    victim: SandboxClient


@contextlib.contextmanager
def serving(arena: Arena) -> Iterator[Service]:
    """A service with two tokens, without limits of their own except for the attacker's rate."""
    attacker = Tenant("attacker", quota=dataclasses.replace(DEFAULT_QUOTA, bytes_per_second=RATE))
    tokens = Tokens({ATTACKER: attacker, VICTIM: Tenant("victim")})
    settings = ServiceSettings(port=0)

    @contextlib.asynccontextmanager
    async def opened():
        async with NodePool(arena.runtime, OPTIONS) as pool:
            yield create_app(pool, settings, tokens)

    with (
        serve_in_thread(opened, settings) as url,
        SandboxClient(url, ATTACKER) as attacker,
        SandboxClient(url, VICTIM) as victim,
    ):
        yield Service(url, attacker, victim)


def _require_served(box: RemoteSandbox) -> None:
    answer = box.run("echo alive").output
    require(answer == "alive\n", f"the other token is told {answer!r:.60}")


def _output(arena: Arena) -> str:
    with serving(arena) as service, service.victim.start(arena.spec) as victims:
        with contextlib.suppress(QuotaExceeded):
            service.attacker.start(dataclasses.replace(arena.spec, output_bytes=1 << 30))
            raise Breach("the service agrees to hold a gigabyte of output")
        most = int(DEFAULT_QUOTA.output_bytes)
        box = service.attacker.start(dataclasses.replace(arena.spec, output_bytes=most))
        done = box.run(f"head -c {OUTPUT_MB}M /dev/zero | tr '\\0' x", timeout=60.0)
        _require_served(victims)
        return require(len(done.output) <= most + 100, f"{len(done.output)} bytes are kept")


def _connections(arena: Arena) -> str:
    raise_file_limit()
    with serving(arena) as service, contextlib.ExitStack() as idle:
        url = urlsplit(service.url)
        for _ in range(CONNECTIONS):
            idle.enter_context(socket.create_connection((url.hostname, url.port), timeout=10.0))
        with service.victim.start(arena.spec) as victims:
            _require_served(victims)
    return f"a call passes {CONNECTIONS} idle connections"


def _room(arena: Arena) -> str:
    with serving(arena) as service:
        boxes: list[RemoteSandbox] = []
        with contextlib.suppress(PoolFull):
            while len(boxes) < OPTIONS.slots:
                boxes.append(service.attacker.start(arena.spec))
        with service.victim.start(arena.spec) as victims:
            _require_served(victims)
        return require(len(boxes) < OPTIONS.slots, f"{len(boxes)} of {OPTIONS.slots} slots taken")


def _memory(arena: Arena) -> str:
    with serving(arena) as service:
        (node,) = service.victim.nodes()
        # Each a third of the memory: if only slots were counted, all of them would start.
        large = dataclasses.replace(arena.spec, memory_mb=node.memory_capacity_mb // 3)
        count = 0
        with contextlib.suppress(PoolFull):
            while count < OPTIONS.slots:
                service.attacker.start(large)
                count += 1
        with service.victim.start(large) as victims:
            _require_served(victims)
        return require(count == 1, f"{count} of three thirds of the memory are taken")


def _snapshots(arena: Arena) -> str:
    with serving(arena) as service:
        with service.victim.start(arena.spec) as victims:
            victims.write({"f": b"mine"})
            kept = victims.snapshot().id
        with service.attacker.start(arena.spec) as box:
            for _ in range(3):  # 9 MB, where 4 MB are kept
                box.run("head -c 3M /dev/urandom > f")
                box.snapshot()
        try:
            service.attacker.start(arena.spec, snapshot=kept)
        except ValueError as error:
            seen = str(error)
        else:
            raise Breach("another token's snapshot can be started")
        with service.victim.start(arena.spec, snapshot=kept) as again:
            require(again.read("f") == b"mine", "the victim's snapshot is another")
        return seen


def _streams(arena: Arena) -> str:
    with serving(arena) as service, contextlib.ExitStack() as streams:
        with service.victim.start(arena.spec) as victims:
            outputs = [
                iter(streams.enter_context(service.attacker.start(arena.spec).spawn("yes")))
                for _ in range(STREAMS)
            ]
            began, received = time.monotonic(), 0
            while (seconds := time.monotonic() - began) < FLOOD_S:
                for output in outputs:
                    received += len(next(output)[1])
            _require_served(victims)
    # A second's worth may come at once. What is received here is sent in base64, which is longer.
    most = RATE * (seconds + 1) + UNDER_WAY
    return require(received < most, f"{received / seconds / 1e6:.0f} MB/s")


def _boxes_of_others(arena: Arena) -> str:
    with serving(arena) as service, service.victim.start(arena.spec) as victims:
        try:
            service.attacker.attach(victims.id)
        except SandboxError as error:
            return str(error)
    raise Breach("another token's sandbox can be used")


ATTACKS = (
    Attack("output of a gigabyte", TENANTS, "output_bytes of a token", _output),
    Attack("idle connections", TENANTS, "the oldest make room", _connections),
    Attack("all slots", TENANTS, "a share for others", _room),
    Attack("all memory", TENANTS, "placement by memory, a share for others", _memory),
    Attack("snapshots", TENANTS, "a store for each owner", _snapshots),
    Attack("streams without end", TENANTS, "bytes_per_second of a token", _streams),
    Attack("another's sandbox", TENANTS, "owners", _boxes_of_others),
)
