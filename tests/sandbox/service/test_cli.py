"""The command line against a service, as a person or a script uses it."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from ale_jax.sandbox import exchange
from ale_jax.sandbox.api import ProcessResult, SandboxStats
from ale_jax.sandbox.cli import tables
from ale_jax.sandbox.cli.main import _copy_out, main
from ale_jax.sandbox.cli.parser import make_parser, spec_of
from ale_jax.sandbox.cli.tables import printable
from ale_jax.sandbox.pool.api import State, Status
from ale_jax.sandbox.spec import WORK, SandboxSpec
from tests.sandbox.conftest import SPEC
from tests.sandbox.service.conftest import ANN, BOB
from tests.sandbox.upstream import ANSWERS, answer_of

pytestmark = pytest.mark.heavy

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
    assert line("exec", "--cwd", "/tmp", id, "echo", "-n", "--", "-i") == (0, "-- -i", "")
    assert line("exec", id, "--", "pwd") == (0, "/work\n", "")
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
    snapshot = snapshot.strip()
    _, other, _ = line("start", *SET, "--snapshot", snapshot)
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


@pytest.fixture
def id(line):
    _, started, _ = line("start", *SET)
    yield started.strip()
    line("rm", started.strip())


def test_copies_keep_permissions_and_go_to_any_writable_path(line, id, tmp_path):
    (tmp_path / "d/e").mkdir(parents=True)
    for name, mode in (("d/run", 0o750), ("d/e/secret", 0o600)):
        (tmp_path / name).write_text(name)
        (tmp_path / name).chmod(mode)
    (tmp_path / "d/e").chmod(0o700)
    assert line("cp", str(tmp_path / "d/run"), f"{id}:/tmp/new") == (0, "", "")
    assert line("cp", str(tmp_path / "d/run"), f"{id}:/tmp/") == (0, "", "")
    assert line("cp", str(tmp_path / "d"), f"{id}:/tmp/a/b") == (0, "", "")
    listed = line("exec", id, "cd /tmp; stat -c '%a %n' new run a/b/run a/b/e a/b/e/secret")[1]
    assert listed == "750 new\n750 run\n750 a/b/run\n700 a/b/e\n600 a/b/e/secret\n"
    assert line("cp", f"{id}:/tmp/a/b", str(tmp_path / "back")) == (0, "", "")
    assert line("cp", f"{id}:/tmp/new", str(tmp_path)) == (0, "", "")
    names = ("back/run", "back/e", "back/e/secret", "new")
    got = [(tmp_path / name).stat().st_mode & 0o777 for name in names]
    assert got == [0o750, 0o700, 0o600, 0o750]
    assert (tmp_path / "back/e/secret").read_text() == "d/e/secret"
    os.utime(tmp_path / "new", (0, 1234567890))
    assert line("cp", str(tmp_path / "new"), f"{id}:/tmp/new") == (0, "", "")
    assert line("exec", id, "stat -c %Y /tmp/new; ln -s new /tmp/link")[1] == "1234567890\n"
    assert line("cp", f"{id}:/tmp/new", str(tmp_path / "old")) == (0, "", "")
    assert (tmp_path / "old").stat().st_mtime == 1234567890
    code, _, err = line("cp", f"{id}:/tmp/link", str(tmp_path))
    assert code == 1 and "'/tmp/link' is a link: name what it leads to" in err
    code, _, err = line("cp", str(tmp_path / "new"), f"{id}:/usr/x")
    assert code == 1 and "is '/usr' writable" in err
    code, _, err = line("cp", f"{id}:nothing", str(tmp_path))
    assert code == 1
    assert err == f"ale-sandbox cp: there is no '{WORK}/nothing' in sandbox {id}\n"


MANY = "mkdir -p many/d; cd many; for n in 640 750 600; do echo $n > $n; chmod $n $n; done"


def test_what_is_beyond_the_end_of_a_listing_is_copied(line, id, tmp_path, monkeypatch):
    monkeypatch.setattr(exchange, "MAX_ENTRIES", 1)
    line("exec", id, MANY)
    for mode in ("640", "750", "600"):
        assert line("cp", f"{id}:many/{mode}", str(tmp_path)) == (0, "", "")
        assert (tmp_path / mode).read_text() == f"{mode}\n"
        assert (tmp_path / mode).stat().st_mode & 0o777 == int(mode, 8)
    assert line("cp", str(tmp_path / "750"), f"{id}:many/d") == (0, "", "")  # into it
    assert line("cp", f"{id}:many/d/", str(tmp_path / "d")) == (0, "", "")
    assert (tmp_path / "d/750").read_text() == "750\n"
    code, _, err = line("cp", f"{id}:many/4", str(tmp_path))
    assert code == 1 and f"there is no '{WORK}/many/4' in sandbox" in err
    line("exec", id, "rm -r many")


def test_a_file_whose_permissions_nobody_tells_is_not_copied_without(tmp_path):
    failed = ProcessResult("", "stat: command not found", 127, False, 0, 0.0)

    def listed(path):
        if path != WORK:
            raise FileNotFoundError(path)
        return []

    box = SimpleNamespace(list=listed, read=lambda path, most: b"x", exec=lambda argv: failed)
    with pytest.raises(OSError, match=f"permissions of '{WORK}/x' are unknown: .*: move the file"):
        _copy_out(box, f"{WORK}/x", tmp_path)
    assert not list(tmp_path.iterdir())


def test_states_are_saved_restored_forked_and_reset(line, id):
    line("exec", id, "echo 1 > x")
    _, snapshot, _ = line("snapshot", id)
    _, forks, _ = line("fork", id, "--count", "2")
    assert line("reset", id) == (0, "", "")
    assert line("exec", id, "ls")[1] == ""
    assert line("restore", id, snapshot.strip()) == (0, "", "")
    first, second = forks.split()
    assert [line("exec", each, "cat x")[1] for each in (id, first, second)] == ["1\n"] * 3
    assert line("rm", first, second)[0] == 0


def test_what_lives_and_what_has_ended_are_told_apart(real, line, id):
    _, other, _ = line("start", *SET)
    other = other.strip()
    assert {id, other} <= set(line("ps", "--quiet")[1].split())
    waiting = threading.Timer(0.5, lambda: real.client().attach(other).close())
    waiting.start()
    assert line("wait", other) == (0, f"{other} stopped\n", "")
    waiting.join()
    assert id in line("ps", "-q")[1] and other not in line("ps", "-q")[1]
    assert other in line("ps", "--all")[1]
    for words in (("logs", other), ("logs", "--follow", other)):
        started, ended = line(*words)[1].splitlines()
        assert f"{other}  sandbox_started" in started and "sandbox_ended" in ended
    events = line("events")[1]
    assert f"{id}  sandbox_started" in events and f"{other}  sandbox_ended" in events


def test_a_command_is_left_and_come_back_to(line, id):
    waits = "echo out; echo err >&2; until [ -e go ]; do sleep 0.01; done; exit 3"
    assert line("exec", "--job", "build", id, waits) == (0, "", "")
    assert line("jobs", id) == (0, "build\n", "")
    while not (found := line("job", id, "build"))[2].startswith("err\n"):
        pass
    assert found[:2] == (75, "out\n")
    assert found[2].startswith("err\nale-sandbox job: it runs, since ")
    line("exec", id, "touch go")
    assert line("job", id, "build", "--wait=60", "--end") == (3, "out\n", "err\n")
    told = "ale-sandbox job: there is no job 'build'\n"
    assert line("job", id, "build")[::2] == (125, told)
    with pytest.raises(SystemExit):  # a job has no client whose input it could get
        line("exec", "-i", "--job", "other", id, "cat")


def test_a_port_is_forwarded_until_the_sandbox_ends(real, line, id):
    assert line("exec", "--job", "server", id, ANSWERS)[0] == 0
    environment = os.environ | {"ALE_SANDBOX_TOKEN": ANN, "ALE_SANDBOX_URL": real.url}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*CLI, "forward", id, "8000"], env=environment, **pipes) as forwarding:
        where, _, told = forwarding.stdout.readline().partition(" ")
        assert told == f"is port 8000 of {id}, until Ctrl-C\n"
        assert answer_of(int(where.rpartition(":")[2])) == b"inside\n"
        line("rm", id)
        assert forwarding.wait(30) == 1
        assert forwarding.stderr.read().endswith(f"sandbox {id!r} is gone: stopped\n")


def test_a_lost_sandbox_is_called_lost(real, line, id):
    pooled = real.pool._lifecycle.sandboxes[f"ann~{id}"]
    pooled.sandbox._machine.link.fail("the runner is gone")
    while line("ps", "-q")[1].count(id):
        pass
    code, _, err = line("exec", id, "true")
    assert (code, err) == (
        125,
        f"ale-sandbox exec: sandbox '{id}' is lost: it or its runner died\n",
    )


def exec_in(real, *words, **options):
    environment = os.environ | {"ALE_SANDBOX_TOKEN": ANN, "ALE_SANDBOX_URL": real.url}
    return subprocess.Popen([*CLI, "exec", *words], env=environment, **options)


def test_input_and_output_are_streamed(real, id):
    pipe = subprocess.PIPE
    script = "while read x; do echo got $x; echo err $x >&2; done; exit 5"
    with exec_in(real, "-i", id, script, stdin=pipe, stdout=pipe, stderr=pipe) as running:
        for word in (b"one", b"two"):  # each answer comes before the next input is sent
            running.stdin.write(word + b"\n")
            running.stdin.flush()
            assert running.stdout.readline() == b"got " + word + b"\n"
        running.stdin.close()
        assert running.wait(30) == 5
        assert running.stderr.read() == b"err one\nerr two\n"


def test_input_that_is_large_or_not_read_ends_with_the_command(real, id):
    data = os.urandom(3_000_000)
    pipe = subprocess.PIPE
    with exec_in(real, "-i", id, "cat", stdin=pipe, stdout=pipe) as running:
        assert running.communicate(data)[0] == data
    with exec_in(real, "-i", id, "head -c 3", stdin=pipe, stdout=pipe) as running:
        assert running.communicate(data)[0] == data[:3]
        assert running.returncode == 0
    with (
        open("/dev/zero") as endless,
        exec_in(real, "-i", "--timeout", "1", id, "sleep 60", stdin=endless) as running,
    ):
        assert running.wait(30) == 124


COMPLETE = """
eval "$(ale-sandbox completion bash)"
complete_line() {
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _ale_sandbox; echo "${COMPREPLY[*]}"
}
complete_line ale-sandbox resto
complete_line ale-sandbox --url "$ALE_SANDBOX_URL" images pru
complete_line ale-sandbox exec --time
complete_line ale-sandbox exec ""
"""


def test_bash_completes_commands_options_and_ids(real, id, tmp_path):
    program = tmp_path / "ale-sandbox"
    program.write_text(f'#!/bin/sh\nexec {" ".join(CLI)} "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {"ALE_SANDBOX_TOKEN": ANN, "ALE_SANDBOX_URL": real.url}
    environment["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    answer = subprocess.run(["bash", "-c", COMPLETE], env=environment, capture_output=True)
    command, action, option, ids = answer.stdout.decode().splitlines()
    assert (command, action, option) == ("restore", "prune", "--timeout")
    assert id in ids.split()


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("start", "--set", "memory_md=1"), 1, "did you mean 'memory_mb'?"),
        (("start", "--set", "memory_mb"), 1, "must be FIELD=VALUE"),
        (("exec", "nobody", "true"), 125, "there is no sandbox 'nobody'"),
        (("exec", "nobody"), 125, "name the command: ale-sandbox exec ID COMMAND"),
        (("logs", "nobody"), 1, "there is no sandbox 'nobody'"),
        (("wait", "nobody"), 1, "there is no sandbox 'nobody'"),
        (("shell", "nobody"), 125, "needs a terminal; type: ale-sandbox exec"),
        (("cp", "a", "b"), 1, "one of the two must be ID:PATH"),
        (("cp", "x:a", "y:b"), 1, "one of the two must be ID:PATH"),
        (("cp", "/nothing/x", "nobody:x"), 1, "there is no sandbox 'nobody'"),
        (("rm",), 1, "--all"),
        (("serve", "--port", "0", "--runtime", "none"), 1, "runtime 'none'"),
        (("serve", "--port", "0", "--uplink-network", "8.8.8.8"), 1, "must be within one of"),
        (("serve", "--port", "0", "--dataset", "wiki"), 1, "below /: NAME=/PATH"),
        (("serve", "--port", "0", "--dataset", "wiki=/proc"), 1, "is no place for one"),
        (("serve", "--port", "0", "--dataset", "wiki=/x/y"), 1, "no directory of this machine"),
        (("serve", "--port", "0", "--uplink-proxy", "/proc/x"), 1, "'/proc/x' cannot be read"),
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
    assert code == 1
    assert err.startswith("ale-sandbox ps: wrong token; set ALE_SANDBOX_TOKEN to a token of http")


def test_a_spec_of_the_command_line():
    words = ["start", "--image", "x", "--set", "user=root", "--set", "cpus=1.5", "--set", "pids=9"]
    spec = spec_of(make_parser().parse_args(words))
    assert spec == SandboxSpec(image="x", user="root", cpus=1.5, pids=9)


def test_what_an_agent_wrote_does_not_rule_the_terminal():
    assert printable("a\x1b[2Jb\nc") == "a?[2Jb?c"


def test_a_table_that_goes_to_no_terminal_is_whole_though_colours_are_asked_for(
    capsys, monkeypatch
):
    monkeypatch.setenv("FORCE_COLOR", "1")
    tables.show("", ("id", "image"), [("x" * 200, "y" * 200)])
    assert f"{'x' * 200}  {'y' * 200}" in capsys.readouterr().out


def test_ps_tells_what_the_page_shows(capsys, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
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
