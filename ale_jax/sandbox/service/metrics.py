"""What the service does, and what it holds now, in numbers for Prometheus."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from ale_jax.sandbox.pool.api import NodeStatus, State, Status
from ale_jax.sandbox.service.protocol import TenantUsage

# Seconds: from a command in a session to a start that builds an image.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """What the service has done since it started. For one event loop."""

    def __init__(self) -> None:
        self.under_way = 0
        self._registry = registry = CollectorRegistry()
        self._calls = Counter(
            "ale_sandbox_calls",
            "Calls, by HTTP status.",
            ["operation", "status"],
            registry=registry,
        )
        self._failures = Counter(
            "ale_sandbox_failures", "Failures, by kind.", ["operation", "kind"], registry=registry
        )
        under_way = Gauge("ale_sandbox_calls_under_way", "Calls in progress.", registry=registry)
        under_way.set_function(lambda: self.under_way)
        self._seconds = Histogram(
            "ale_sandbox_call_seconds",
            "How long calls took.",
            ["operation"],
            registry=registry,
            buckets=BUCKETS,
        )

    def observe(self, operation: str, status: int, seconds: float) -> None:
        """operation: the name of the route, one of few."""
        self._calls.labels(operation, status).inc()
        self._seconds.labels(operation).observe(seconds)

    def failed(self, operation: str, kind: str) -> None:
        self._failures.labels(operation, kind).inc()

    def text(
        self,
        statuses: Sequence[Status],
        nodes: Sequence[NodeStatus],
        tenants: Sequence[TenantUsage] = (),
    ) -> bytes:
        """Returns all of it, and what is so now, as Prometheus reads it."""
        now = (*_pool(statuses, nodes), *_tenants(tenants))
        return generate_latest(_Families([*self._registry.collect(), *now]))


class _Families(CollectorRegistry):
    """Metrics that were collected already."""

    def __init__(self, families: Sequence[Metric]):
        super().__init__()
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


NODE_GAUGES: Mapping[str, tuple[str, Callable[[NodeStatus], float]]] = {
    "alive": ("Whether the node answers.", lambda node: node.alive),
    "slots": ("Maximum number of sandboxes on the node.", lambda node: node.slots),
    "used_slots": ("Slots in use.", lambda node: node.used),
    "ready": ("Warm sandboxes.", lambda node: node.ready),
    "restarts": ("Sandboxes that were lost and started again.", lambda node: node.restarts),
    "cpu_percent": (
        "CPU usage of the node, 100 for all cores.",
        lambda node: round(node.cpu_percent, 1),
    ),
    "memory_bytes": ("Memory in use on the node.", lambda node: node.memory_bytes),
    "memory_capacity_mb": ("Memory for specs.", lambda node: node.memory_capacity_mb),
    "memory_reserved_mb": ("Memory that specs ask for.", lambda node: node.memory_reserved_mb),
    "cpus_capacity": ("CPUs for specs.", lambda node: node.cpus_capacity),
    "cpus_reserved": ("CPUs that specs ask for.", lambda node: node.cpus_reserved),
}
TENANT_GAUGES = {
    "sandboxes": "Living sandboxes of a token.",
    "memory_mb": "Memory that they ask for.",
    "cpus": "CPUs that they ask for.",
    "calls": "Calls of a token in progress.",
}
TENANT_COUNTERS = {
    "sandbox_seconds": "How long the sandboxes of a token were up.",
    "cpu_seconds": "CPU time that they used.",
    "bytes_in": "Bytes received from a token.",
    "bytes_out": "Bytes sent to a token.",
    "calls": "Calls of a token.",
}


def _pool(statuses: Sequence[Status], nodes: Sequence[NodeStatus]) -> Iterator[Metric]:
    states = Counts(status.state for status in statuses)
    family = GaugeMetricFamily("ale_sandbox_sandboxes", "Sandboxes, by state.", labels=["state"])
    for state in State:
        family.add_metric([state], states[state])
    yield family
    for name, (text, value) in NODE_GAUGES.items():
        family = GaugeMetricFamily(f"ale_sandbox_node_{name}", text, labels=["node"])
        for node in nodes:
            family.add_metric([node.node], value(node))
        yield family


def _tenants(tenants: Sequence[TenantUsage]) -> Iterator[Metric]:
    for field, text in TENANT_GAUGES.items():
        gauge = GaugeMetricFamily(f"ale_sandbox_tenant_{field}", text, labels=["tenant"])
        for each in tenants:
            gauge.add_metric([each.tenant], each.now[field])
        yield gauge
    for field, text in TENANT_COUNTERS.items():
        total = CounterMetricFamily(f"ale_sandbox_tenant_{field}", text, labels=["tenant"])
        for each in tenants:
            total.add_metric([each.tenant], each.total[field])
        yield total
