"""The service over a cluster, as an operator starts and ends it."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ale_jax.sandbox.cli.main import main
from ale_jax.sandbox.sdk.client import SandboxClient
from tests.sandbox.pool.fakes import until
from tests.sandbox.service.conftest import ANN
from tests.sandbox.service.test_cli import SET
from tests.sandbox.upstream import ANSWERS, CALL, answer_of, upstream
from tests.system.conftest import SPEC

pytestmark = pytest.mark.heavy

SERVE = [sys.executable, "-m", "ale_jax.system.fleet.serve", "--port=0"]


@pytest.fixture
def tokens(tmp_path):
    file = tmp_path / "tokens"
    file.write_text(f"ann {ANN} admin")
    file.chmod(0o600)
    return file


def runs(word: str) -> bool:
    """Whether a process of this machine, in a sandbox or not, has `word` in its command line."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes())
        except OSError:  # it has just ended
            continue
    return any(word.encode() in line for line in lines)


def test_a_service_over_a_cluster_until_it_is_told_to_end(cluster, runtime_name, tokens):
    words = [f"--address={cluster.address}", f"--runtime={runtime_name}", f"--token-file={tokens}"]
    line = [*SERVE, *words, "--slots=2", "--warm=1", *SET]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as serving:
        try:
            url = serving.stdout.readline().split()[0]
            with SandboxClient(url, ANN) as client:
                (node,) = client.nodes()
                assert (node.slots, node.alive) == (2, True)
                box = client.start(SPEC)
                assert box.run("echo works").output == "works\n"
                with box.terminal("stty size; read x; stty size; exit $x", 30, 100) as terminal:
                    shown = iter(terminal)
                    assert next(shown).startswith(b"30 100")
                    terminal.resize(31, 101)
                    terminal.send(b"7\n")
                    assert b"".join(shown).endswith(b"31 101\r\n")
                assert terminal.exit_code == 7
                with box.terminal("echo begun; exec sleep 98765") as terminal:
                    assert next(iter(terminal)).startswith(b"begun")
                asyncio.run(until(lambda: not runs("sleep\0" + "98765")))
                with upstream("hello\n") as port, box.relay(4000, "127.0.0.1", port):
                    assert box.run(CALL).output == "hello\nmore\n"
                box.start_job("server", ANSWERS)
                with box.forward(8000) as port:
                    assert answer_of(port) == b"inside\n"
                assert box.job("server", seconds=0.1).exit_code is None
                closed = "until ! : 2> /dev/null > /dev/tcp/127.0.0.1/4000; do sleep 0.1; done"
                assert box.run(closed, timeout=20).exit_code == 0
                box.run("sleep 98764 & disown")
                asyncio.run(until(lambda: runs("sleep\0" + "98764")))
            serving.send_signal(signal.SIGTERM)
            assert serving.wait(30) == 0
            assert not runs("sleep\0" + "98764")
        finally:
            serving.kill()


def test_a_fleet_outlives_its_service(cluster, runtime_name, tokens, tmp_path):
    words = [f"--address={cluster.address}", f"--runtime={runtime_name}", f"--token-file={tokens}"]
    line = [*SERVE, *words, "--slots=2", f"--state={tmp_path / 'state'}", *SET]
    try:
        for output in ("1\n", "2\n"):
            with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as serving:
                url = serving.stdout.readline().split()[0]
                with SandboxClient(url, ANN) as client:
                    box = client.start(SPEC, id="kept")
                    assert box.run("n=$((n + 1)); echo $n").output == output
                serving.kill()
    finally:
        assert main(["stop-node", str(tmp_path / "state")]) == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--host=0.0.0.0",), "there is no token: pass a file of tokens, or host 127.0.0.1"),
        (("--runtime=podman",), "could not join: runtime 'podman' must be one of auto, docker"),
        (("--set=memory_md=1",), "did you mean 'memory_mb'?"),
    ],
)
def test_an_error_is_one_line_with_what_to_do(cluster, words, told):
    line = [*SERVE, f"--address={cluster.address}", *words]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (1, "")
    *events, error = done.stderr.splitlines()
    assert error.startswith("serve: ") and told in error
    assert all(event.startswith("INFO ale_jax.sandbox.pool") for event in events)
