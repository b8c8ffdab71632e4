"""A service whose sandboxes outlive it, as an operator starts, kills and ends it."""

import json
import os
import signal
import subprocess
import threading

import pytest

from ale_jax.sandbox import bubblewrap
from ale_jax.sandbox.cli.main import main
from ale_jax.sandbox.pool.api import QuotaExceeded
from ale_jax.sandbox.sdk.client import SandboxClient
from benchmarks.sandbox.host_view import is_gone
from tests.sandbox.conftest import SPEC
from tests.sandbox.service.conftest import ANN, BOB
from tests.sandbox.service.test_cli import CLI
from tests.sandbox.upstream import ANSWERS, CALL, answer_of, upstream

pytestmark = pytest.mark.heavy

COUNT = "n=$((n + 1)); sleep 1; echo $n"


@pytest.fixture
def serve(tmp_path):
    """Starts a service on a state directory: its process and URL."""
    if reason := bubblewrap.probe(SPEC):
        pytest.skip(f"bubblewrap: {reason}")
    tokens, state = tmp_path / "tokens", tmp_path / "state"
    tokens.write_text(f"ann {ANN}\nbob {BOB} sandboxes=1")
    tokens.chmod(0o600)
    line = [*CLI, "serve", "--runtime", "bubblewrap", "--token-file", str(tokens)]
    services = []

    def start(port="0"):
        words = ["--port", port, "--state", str(state)]
        services.append(subprocess.Popen([*line, *words], stdout=subprocess.PIPE, text=True))
        return services[-1], services[-1].stdout.readline().split()[0]

    start.state = state
    yield start
    main(["stop-node", str(state)])
    for service in services:
        service.kill()
        service.communicate()


def test_a_service_that_is_killed_in_the_middle_is_replaced_without_loss(serve):
    killed, url = serve()
    with SandboxClient(url, ANN) as client:
        box = client.start(SPEC, id="kept")
        assert box.run("n=0; cd /tmp; pwd").output == "/tmp\n"
        outputs = []
        calling = threading.Thread(target=lambda: outputs.append(box.run(COUNT).output))
        calling.start()
        while not client.statuses()[0].busy:
            pass
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        serve(port=url.rpartition(":")[2])
        calling.join()  # the client has asked again
        assert outputs == ["1\n"] and box.run("echo $n; pwd").output == "1\n/tmp\n"
    _, other = serve()  # beside the first one
    with SandboxClient(other, ANN) as ann, SandboxClient(other, BOB) as bob:
        assert [each.id for each in ann.statuses()] == ["kept"] and not bob.statuses()
        assert ann.attach("kept").run("echo $n").output == "1\n"
        with ann.attach("kept").terminal("read x; exit $x") as terminal:
            terminal.send(b"5\n")
            b"".join(terminal)
        assert terminal.exit_code == 5
        kept = ann.attach("kept")
        with upstream("hello\n") as port, kept.relay(4000, "127.0.0.1", port):
            assert kept.run(CALL).output == "hello\nmore\n"
        assert "refused" in kept.run("exec 3<> /dev/tcp/127.0.0.1/4000").output
        kept.start_job("server", ANSWERS)
        assert kept.job("server").exit_code is None
        with kept.forward(8000) as port:
            assert answer_of(port) == b"inside\n"


def test_services_of_one_owner_keep_the_limits_of_a_token_together(serve):
    (_, one), (_, other) = serve(), serve()
    with SandboxClient(one, BOB) as here, SandboxClient(other, BOB) as there:
        box = here.start(SPEC, id="first")
        with pytest.raises(QuotaExceeded, match=r"sandboxes 2 .* use, 1; .*stop a sandbox"):
            there.start(SPEC)
        assert there.start(SPEC, id="first").id == box.id
        (usage,) = there.usage()
        assert (usage.now["sandboxes"], usage.limits["sandboxes"]) == (1, 1)
        there.attach("first").renew(60.0)
        box.close()
        there.start(SPEC)


def test_what_stays_is_said_and_ended_by_a_command(serve, capsys):
    service, url = serve()
    with SandboxClient(url, ANN) as client:
        client.start(SPEC)
    owner = json.loads((serve.state / "node.json").read_text())["pid"]
    service.send_signal(signal.SIGINT)
    assert service.wait(30) == 130
    os.kill(owner, 0)
    words = ["serve", "--port=0", "--runtime=bubblewrap", "--slots=7", f"--state={serve.state}"]
    assert main(words) == 1
    assert "--slots 7: the sandboxes of" in capsys.readouterr().err
    assert main([*words[:3], "--uplink-network=10.0.5.7", words[-1]]) == 1
    assert "--uplink-network ['10.0.5.7']: the sandboxes of" in capsys.readouterr().err
    assert main(["stop-node", str(serve.state)]) == 0
    while not is_gone(owner):  # it has ended its sandboxes; Python itself is still ending
        pass
    assert main(["stop-node", str(serve.state)]) == 0
    assert "no process owns sandboxes" in capsys.readouterr().out


def test_an_owner_that_cannot_start_says_why(tmp_path, capsys):
    line = [*CLI, "serve", "--port=0", "--runtime=none", f"--state={tmp_path / 'state'}"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "runtime 'none' must be one of" in done.stderr
    assert done.stderr.count("\n") == 1
