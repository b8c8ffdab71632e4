"""Verifiers whose tests are run by pytest, in whose process the agent's code runs, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ale_jax.sandbox.blocking import BlockingSandbox
from ale_jax.sandbox.egress.policy import EgressPolicy
from ale_jax.sandbox.verify import pytest_inside
from ale_jax.sandbox.verify.reward import JSON_FILE
from ale_jax.sandbox.verify.verifier import Evidence, Verifier

SCRIPT = Path(pytest_inside.__file__)
TESTS, REPORT = "/tests", "/logs/verifier"
PYTHON = ("python3", "-I")  # isolated: neither its folder nor a variable leads it to the agent's
LOOK = "import importlib.util, sys; sys.exit(not importlib.util.find_spec('pytest'))"
REMEDY = (
    "on bubblewrap, which uses the host's own, type: apt-get install python3-pytest; "
    "on Docker choose an image that has it, ale-shell say"
)


def pytest_verifier(
    files: Mapping[str, bytes],
    names: Sequence[str],
    cwd: str,
    seconds: float,
    network: EgressPolicy | None = None,
) -> Verifier:
    """Tests that are passed if every one that pytest collects in `names` is.

    files: by path relative to /tests, where `names` are, too. The variable TEST_DIR tells it.
    """
    if SCRIPT.name in files:
        raise ValueError(f"tests {SCRIPT.name!r}: the verifier's own file has that name; rename it")
    return Verifier(
        files={**files, SCRIPT.name: SCRIPT.read_bytes()},
        command=[*PYTHON, f"{TESTS}/{SCRIPT.name}", TESTS, f"{REPORT}/{JSON_FILE}", *names],
        evidence=Evidence.BOTH,
        tests=TESTS,
        report=REPORT,
        cwd=cwd,
        env={"TEST_DIR": TESTS},
        seconds=seconds,
        network=network,
    )


def has_pytest(sandbox: BlockingSandbox) -> bool:
    """Whether a `pytest_verifier` can run in there; if not, REMEDY says what to do."""
    return sandbox.exec(["python3", "-I", "-c", LOOK]).exit_code == 0
