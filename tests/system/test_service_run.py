"""A run whose sandboxes are those of a service: the same numbers, and no end with the service."""

import os
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from ale_jax import launch
from ale_jax.monitor.evaluations import EVALUATIONS_FILE, read_evaluations
from ale_jax.monitor.events import ATTEMPT_FAILED, EVENTS_FILE, read_events
from ale_jax.sandbox.pool.api import Cause
from ale_jax.sandbox.sdk.client import SandboxClient
from ale_jax.status import STATUS_RULES, Status
from tests.sandbox.service.conftest import ANN
from tests.system.whole_runs import LEARNING, begin, command, interrupt, last_state

pytestmark = pytest.mark.heavy


class Service:
    """`ale-sandbox serve`, in a process of its own, which can be killed and started again."""

    def __init__(self, runtime_name, folder):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self._runtime, self._log = runtime_name, folder / "service.txt"

    def start(self):
        line = ["-m", "ale_jax.sandbox.cli.main", "serve", f"--port={self._port}", "--slots=8"]
        environment = os.environ | {"ALE_SANDBOX_TOKENS": f"ann {ANN}"}
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *line, f"--runtime={self._runtime}"],
                env=environment,
                stdout=log,
                stderr=log,
            )
        while self.url not in self._log.read_text():
            assert self.process.poll() is None, self._log.read_text()
            time.sleep(0.05)

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def service(runtime_name, tmp_path, monkeypatch):
    monkeypatch.setenv("ALE_SANDBOX_TOKEN", ANN)
    service = Service(runtime_name, tmp_path)
    service.start()
    yield service
    service.kill()


@pytest.mark.slow
def test_a_service_that_is_killed_in_the_middle_leaves_no_trace_in_the_results(
    unbroken, service, tmp_path
):
    """With the workers in processes of their own, which have the token from the run."""
    here, _ = unbroken
    workdir = tmp_path / "run"
    with begin(workdir, service.url, *LEARNING, "--config.rollout.workers=ray") as process:
        interrupt(process, workdir, 0, step=1)
        service.kill()
        service.start()
        _, told = process.communicate(timeout=200)
    assert process.returncode == 0, told
    for ours, theirs in zip(*map(jax.tree.leaves, map(last_state, (workdir, here))), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert rewards(workdir) == rewards(here)
    events = read_events(workdir / EVENTS_FILE).records
    failed = [each.fields["status"] for each in events if each.kind == ATTEMPT_FAILED]
    assert failed and all(STATUS_RULES[Status(status)].infra for status in failed)
    recorded = [path.read_bytes() for path in workdir.rglob("*") if path.is_file()]
    assert any(service.url.encode() in content for content in recorded)
    assert not any(ANN.encode() in content for content in recorded)
    with SandboxClient(service.url, ANN) as client:
        left = {(status.labels["role"], status.cause) for status in client.statuses()}
    assert left == {("rollout_worker", Cause.STOPPED)}


def rewards(workdir):
    """Of all evaluations, by their names."""
    found = read_evaluations(workdir / EVALUATIONS_FILE)
    return {evaluation.name: evaluation.families for evaluation in found}


def refused(capsys, *line):
    """The one line in which a run that cannot start says why."""
    _, _, *line = command(*line)
    assert launch.main(line) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1, told
    return told[0]


def test_a_service_that_is_not_there_or_refuses_is_told_in_one_line(
    service, tmp_path, capsys, monkeypatch
):
    many = "--config.rollout.episodes_per_actor=16", "--config.engine.max_sequences=16"
    told = refused(capsys, tmp_path / "run", service.url, *many)
    assert f"this run needs 16 sandboxes at a time, and {service.url} has 8 slots: lower" in told
    monkeypatch.setenv("ALE_SANDBOX_TOKEN", "not-one-of-its-tokens")
    told = refused(capsys, tmp_path / "run", service.url)
    assert f"{service.url} refuses: wrong token; set ALE_SANDBOX_TOKEN to" in told
    service.kill()
    told = refused(capsys, tmp_path / "run", service.url)
    assert f"no answer from {service.url}/ (ConnectError" in told and "ale-sandbox serve" in told
