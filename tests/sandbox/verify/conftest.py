"""A sandbox that an agent has worked in, on both runtimes, with and without an agent's privileges.

The task of these tests: /app/answer has to say 42.
"""

import pytest

from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.sandbox.verify.verifier import Evidence, Verifier, verify

WRITABLE = ("/app", "/tests", "/logs/verifier", "/usr/local/bin")
SPEC = SandboxSpec(
    memory_mb=192,
    pids=48,
    files_mb=8,
    writable=WRITABLE,
    command_seconds=10.0,
    output_bytes=4000,
)
TEST = b"""
answer=$(cat /app/answer 2> /dev/null)
if [ "$answer" = 42 ]; then echo 1; else echo 0; fi > "$REPORT/reward.txt"
"""


def bash_verifier(script: bytes = TEST, evidence=Evidence.REPORT, **fields) -> Verifier:
    """Runs `script`, which finds the directory for its report in REPORT."""
    tests, report = fields.pop("tests", "/tests"), fields.pop("report", "/logs/verifier")
    command = ["bash", f"{tests}/test.sh"]
    env = {"REPORT": report, **fields.pop("env", {})}
    return Verifier({"test.sh": script}, command, evidence, tests, report, env=env, **fields)


def reward(box, verifier: Verifier | None = None) -> float:
    return verify(box, verifier or bash_verifier()).reward


@pytest.fixture(scope="session", params=["agent", "root"])
def shared_box(runtime, request):
    spec = SandboxSpec.from_json(SPEC.to_json() | {"user": request.param})
    with runtime.start(spec, {"run": "tests"}) as sandbox:
        yield sandbox


@pytest.fixture
def box(shared_box):
    shared_box.reset()
    for directory in WRITABLE:
        shared_box.replace_directory(directory, {})
    return shared_box
