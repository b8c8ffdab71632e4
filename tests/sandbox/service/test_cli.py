"""The command line against a service, as a person or a script uses it."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import threading

import pytest

from ale_jax.sandbox.api import SandboxStats
from ale_jax.sandbox.cli import tables
from ale_jax.sandbox.cli.main import main
from ale_jax.sandbox.cli.parser import make_parser, spec_of
from ale_jax.sandbox.cli.tables import printable
from ale_jax.sandbox.pool.api import State, Status
from ale_jax.sandbox.spec import WORK, SandboxSpec
from tests.sandbox.conftest import SPEC
from tests.sandbox.service.conftest import ANN, BOB

SET = [
    word
    for name in ("memory_mb", "files_mb")
    for word in ("--set", f"{name}={getattr(SPEC, name)}")
]
CLI = [sys.executable, "-m", "ale_jax.sandbox.cli.main"]


@pytest.fixture
def line(real, monkeypatch, capfdbinary):
    """Runs a command line: its exit code, output and errors."""
    monkeypatch.setenv("ALE_SANDBOX_TOKEN", ANN)

    def run(*words):
        code = main(["--url", real.url, *words])
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    return run


def test_a_life(line, tmp_path):
    code, id, _ = line("start", *SET)
    id = id.strip()
    assert code == 0
    assert line("exec", id, "echo out; echo err >&2; exit 3") == (3, "out\n", "err\n")
    assert line("exec", id, "echo", "$HOME") == (0, "$HOME\n", "")
    _, table, _ = line("ps")
    assert id in table and "running" in table
    (tmp_path / "x").write_bytes(b"1")
    (tmp_path / "d/e").mkdir(parents=True)
    (tmp_path / "d/e/y").write_bytes(b"2")
    assert line("cp", str(tmp_path / "x"), f"{id}:{WORK}/d/") == (0, "", "")
    assert line("cp", str(tmp_path / "d"), f"{id}:d") == (0, "", "")
    assert line("exec", id, "cat d/x d/e/y") == (0, "12", "")
    assert line("cp", f"{id}:d/x", str(tmp_path / "back")) == (0, "", "")
    assert line("cp", f"{id}:{WORK}/d", str(tmp_path / "all")) == (0, "", "")
    assert (tmp_path / "back").read_bytes() == b"1"
    assert (tmp_path / "all/e/y").read_bytes() == b"2"
    _, snapshot, _ = line("snapshot", id)
    _, other, _ = line("start", *SET, "--snapshot", snapshot.strip())
    assert line("exec", other.strip(), "cat d/x") == (0, "1", "")
    assert line("stats")[0] == 0
    assert line("renew", id, "60") == (0, "", "")
    code, usage, _ = line("usage")
    rows = [row.split() for row in usage.splitlines()]
    (held,) = (row for row in rows if row[:2] == ["ann", "memory_mb"])
    assert int(held[2]) >= 2 * SPEC.memory_mb and held[3:] == ["no", "limit"]
    assert ["ann", "calls", "1", "512"] in rows
    assert line("rm", id, other.strip()) == (0, "", "")
    code, out, err = line("exec", id, "true")
    assert (code, out) == (125, "")
    assert err == f"ale-sandbox exec: sandbox '{id}' is gone: stopped\n"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("start", "--set", "memory_md=1"), 1, "did you mean 'memory_mb'?"),
        (("start", "--set", "memory_mb"), 1, "must be FIELD=VALUE"),
        (("exec", "nobody", "true"), 125, "'nobody' is gone"),
        (("shell", "nobody"), 125, "needs a terminal; type: ale-sandbox exec"),
        (("cp", "a", "b"), 1, "one of the two must be ID:PATH"),
        (("cp", "x:a", "y:b"), 1, "one of the two must be ID:PATH"),
        (("cp", "/nothing/x", "nobody:x"), 1, "gone"),
        (("rm",), 1, "--all"),
        (("serve", "--port", "0", "--runtime", "none"), 1, "runtime 'none'"),
        (("serve", "--host", "0.0.0.0", "--state", "/proc/x"), 1, "there is no token"),
    ],
)
def test_an_error_is_one_line_with_what_to_do(line, monkeypatch, words, code, told):
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        got, out, err = line(*words)
    assert (got, out) == (code, "") and told in err and err.count("\n") == 1


def test_a_wrong_token_is_one_line(line, monkeypatch):
    monkeypatch.setenv("ALE_SANDBOX_TOKEN", BOB + "x")
    code, _, err = line("ps")
    assert code == 1 and err.startswith("ale-sandbox ps: wrong token; send the header")


def test_a_spec_of_the_command_line():
    words = ["start", "--image", "x", "--set", "user=root", "--set", "cpus=1.5", "--set", "pids=9"]
    spec = spec_of(make_parser().parse_args(words))
    assert spec == SandboxSpec(image="x", user="root", cpus=1.5, pids=9)


def test_what_an_agent_wrote_does_not_rule_the_terminal():
    assert printable("a\x1b[2Jb\nc") == "a?[2Jb?c"


def test_ps_tells_what_the_page_shows(capsys):
    head = ("a", "n", "memory", State.RUNNING, None, 3, 2, 1.0, 1.0, SPEC)
    stats = SandboxStats(7, 5 << 20, 8 << 20, 1.0, 40 << 20)
    tables.sandboxes([Status(*head, {}, (), stats, cpu_percent=55.0), Status(*head, {}, ())])
    columns, full, bare = capsys.readouterr().out.splitlines()
    assert columns.split()[3:] == [
        *("generation", "node", "image", "busy", "age", "cpu", "memory", "disk", "processes")
    ]
    assert full.split()[2:6] == ["3", "n", SPEC.image, "2"]
    assert full.split()[-7:] == ["55", "%", "40", "MB", "5", "MB", "7"]
    assert bare.split()[-2].isdecimal() and bare.split()[-1] in ("d", "h", "s")  # its age


def test_a_shell_is_interactive(real):
    with real.client() as client, client.start(SPEC) as box:
        environment = os.environ | {"ALE_SANDBOX_TOKEN": ANN, "ALE_SANDBOX_URL": real.url}
        terminal, inner = pty.openpty()  # not pty.fork(), which would fork jax's threads away
        words = ["shell", box.id, "--run", "echo $((6*7)); read x; exit $x"]
        shell = subprocess.Popen(
            [*CLI, *words], stdin=inner, stdout=inner, env=environment, start_new_session=True
        )
        os.close(inner)
        watchdog = threading.Timer(60, shell.kill)
        watchdog.start()
        shown = b""
        while b"42" not in shown:
            shown += os.read(terminal, 1000)
        os.write(terminal, b"9\r")
        with contextlib.suppress(OSError):  # its other end is closed
            while True:
                shown += os.read(terminal, 1000)
        os.close(terminal)
        code = shell.wait()
        watchdog.cancel()
        assert code == 9, shown


def test_a_service_starts_and_ends(tmp_path, runtime):
    tokens = tmp_path / "tokens"
    tokens.write_text(f"ann {ANN}")
    tokens.chmod(0o600)
    words = ["serve", "--port", "0", "--runtime", runtime.name, "--token-file", str(tokens)]
    with subprocess.Popen([*CLI, *words], stdout=subprocess.PIPE, text=True) as serving:
        try:
            url, *rest = serving.stdout.readline().split()
            assert f"({runtime.name};" in rest
            environment = os.environ | {"ALE_SANDBOX_TOKEN": ANN, "ALE_SANDBOX_URL": url}
            run = [*CLI, "start", *SET]
            id = subprocess.run(run, env=environment, capture_output=True, text=True).stdout.strip()
            run = [*CLI, "exec", id, "exit 5"]
            assert subprocess.run(run, env=environment).returncode == 5
            serving.send_signal(signal.SIGTERM)
            assert serving.wait(30) == 0
        finally:
            serving.kill()
