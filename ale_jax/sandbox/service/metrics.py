"""Counters and histograms, in the text format that Prometheus reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ale_jax.sandbox.pool.api import NodeStatus, State, Status

# Seconds: from a command in a session to a start that builds an image.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """What the service did since it started; for one event loop."""

    def __init__(self):
        self._calls: Counter[tuple[str, int]] = Counter()
        self._failures: Counter[tuple[str, str]] = Counter()
        self._seconds: dict[str, float] = {}
        self._buckets: dict[str, list[int]] = {}
        self.under_way = 0

    def observe(self, operation: str, status: int, seconds: float) -> None:
        """operation: the name of what was asked for, one of few."""
        self._calls[operation, status] += 1
        self._seconds[operation] = self._seconds.get(operation, 0.0) + seconds
        counts = self._buckets.setdefault(operation, [0] * len(BUCKETS))
        for index, bound in enumerate(BUCKETS):
            counts[index] += seconds <= bound

    def failed(self, operation: str, kind: str) -> None:
        self._failures[operation, kind] += 1

    def render(self, statuses: Sequence[Status], nodes: Sequence[NodeStatus]) -> str:
        lines = [*self._operations(), *_pool(statuses, nodes)]
        return "\n".join(lines) + "\n"

    def _operations(self) -> Iterable[str]:
        yield from _head("ale_sandbox_calls_total", "counter", "Calls, by status of HTTP.")
        for (operation, status), count in sorted(self._calls.items()):
            yield _line("ale_sandbox_calls_total", count, operation=operation, status=status)
        yield from _head("ale_sandbox_failures_total", "counter", "Failures, by kind.")
        for (operation, kind), count in sorted(self._failures.items()):
            yield _line("ale_sandbox_failures_total", count, operation=operation, kind=kind)
        yield from _head("ale_sandbox_calls_under_way", "gauge", "Calls that are not answered yet.")
        yield _line("ale_sandbox_calls_under_way", self.under_way)
        yield from self._histograms()

    def _histograms(self) -> Iterable[str]:
        name = "ale_sandbox_call_seconds"
        yield from _head(name, "histogram", "How long calls took.")
        for operation, counts in sorted(self._buckets.items()):
            total = sum(n for (named, _), n in self._calls.items() if named == operation)
            for bound, count in zip((*BUCKETS, "+Inf"), (*counts, total), strict=True):
                yield _line(f"{name}_bucket", count, operation=operation, le=bound)
            yield _line(f"{name}_sum", round(self._seconds[operation], 6), operation=operation)
            yield _line(f"{name}_count", total, operation=operation)


def _pool(statuses: Sequence[Status], nodes: Sequence[NodeStatus]) -> Iterable[str]:
    yield from _head("ale_sandbox_sandboxes", "gauge", "Sandboxes, by state.")
    states = Counter(status.state for status in statuses)
    for state in State:
        yield _line("ale_sandbox_sandboxes", states[state], state=state)
    for name, text, value in (
        ("alive", "Whether the node answers.", lambda node: int(node.alive)),
        ("slots", "Sandboxes that the node may hold.", lambda node: node.slots),
        ("used_slots", "Of them, those in use.", lambda node: node.used),
        ("ready", "Warm sandboxes.", lambda node: node.ready),
        ("restarts", "Sandboxes that were lost and started again.", lambda node: node.restarts),
        ("cpu_percent", "Of all cores of the node.", lambda node: round(node.cpu_percent, 1)),
        ("memory_bytes", "Memory in use on the node.", lambda node: node.memory_bytes),
    ):
        yield from _head(f"ale_sandbox_node_{name}", "gauge", text)
        for node in nodes:
            yield _line(f"ale_sandbox_node_{name}", value(node), node=node.node)


def _head(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"


def _line(name: str, value: float, **labels: object) -> str:
    inside = ",".join(f'{key}="{_escaped(str(text))}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {value}" if inside else f"{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
