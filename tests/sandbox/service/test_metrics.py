"""What Prometheus reads, to the letter."""

import re

import pytest

from ale_jax.sandbox.pool.api import NodeStatus, State, Status
from ale_jax.sandbox.service.metrics import Metrics
from ale_jax.sandbox.spec import SandboxSpec

STARTING, RUNNING = (
    Status("x", "n", "memory", state, None, 0, 0, 1.0, 1.0, SandboxSpec(), {}, ())
    for state in (State.STARTING, State.RUNNING)
)
NODES = [
    NodeStatus("a", True, 9, 4, 3, 2, 12.34, 5, 6, 7, 8, 1.5, 0.5),
    NodeStatus('"b\\', False, 0, 0, 0, 0, 0.0, 0, 0, 0, 0, 0.0, 0.0),
]

SECTIONS = {
    "calls_total": """
# HELP ale_sandbox_calls_total Calls, by HTTP status.
# TYPE ale_sandbox_calls_total counter
ale_sandbox_calls_total{operation="run",status="200"} 2.0
ale_sandbox_calls_total{operation="run",status="500"} 1.0
ale_sandbox_calls_total{operation="stats",status="200"} 1.0
""",
    "failures_total": """
# HELP ale_sandbox_failures_total Failures, by kind.
# TYPE ale_sandbox_failures_total counter
ale_sandbox_failures_total{kind="internal",operation="run"} 1.0
""",
    "calls_under_way": """
# HELP ale_sandbox_calls_under_way Calls in progress.
# TYPE ale_sandbox_calls_under_way gauge
ale_sandbox_calls_under_way 7.0
""",
    "sandboxes": """
# HELP ale_sandbox_sandboxes Sandboxes, by state.
# TYPE ale_sandbox_sandboxes gauge
ale_sandbox_sandboxes{state="pending"} 0.0
ale_sandbox_sandboxes{state="starting"} 1.0
ale_sandbox_sandboxes{state="ready"} 0.0
ale_sandbox_sandboxes{state="running"} 2.0
ale_sandbox_sandboxes{state="stopping"} 0.0
ale_sandbox_sandboxes{state="stopped"} 0.0
ale_sandbox_sandboxes{state="failed"} 0.0
""",
    "node_cpu_percent": """
# HELP ale_sandbox_node_cpu_percent CPU usage of the node, 100 for all cores.
# TYPE ale_sandbox_node_cpu_percent gauge
ale_sandbox_node_cpu_percent{node="a"} 12.3
ale_sandbox_node_cpu_percent{node="\\"b\\\\"} 0.0
""",
}
VALUES_OF_A = {
    **{"alive": "1.0", "slots": "9.0", "used_slots": "4.0", "ready": "3.0", "restarts": "2.0"},
    "memory_bytes": "5.0",
}


@pytest.fixture
def text():
    metrics = Metrics()
    for operation, status, seconds in (
        ("run", 200, 0.001),  # in the first bucket: a bound belongs to its bucket
        ("run", 200, 30.5),
        ("run", 500, 61.0),
        ("stats", 200, 0.25),
    ):
        metrics.observe(operation, status, seconds)
    metrics.failed("run", "internal")
    metrics.under_way = 7
    return metrics.text([STARTING, RUNNING, RUNNING], NODES).decode()


def test_counters_and_gauges(text):
    for name, expected in SECTIONS.items():
        start = text.index(f"# HELP ale_sandbox_{name} ")
        found = text[start:].split("\n# HELP")[0].splitlines()
        assert found == expected.strip().splitlines(), name
    for name, value in VALUES_OF_A.items():
        assert f'ale_sandbox_node_{name}{{node="a"}} {value}' in text.splitlines()


def test_a_histogram_counts_what_took_at_most_so_long(text):
    name = "ale_sandbox_call_seconds"
    lines = [
        line for line in text.splitlines() if re.match(f'{name}_bucket.*operation="run"', line)
    ]
    counts = {line.split('le="')[1].split('"')[0]: float(line.split()[-1]) for line in lines}
    quick = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
    assert counts == {**{str(bound): 1 for bound in quick}, "60.0": 2, "+Inf": 3}
    assert f'{name}_sum{{operation="run"}} 91.501' in text
    assert f'{name}_count{{operation="run"}} 3.0' in text
    assert f'{name}_bucket{{le="0.25",operation="stats"}} 1.0' in text
    assert f'{name}_bucket{{le="0.1",operation="stats"}} 0.0' in text
