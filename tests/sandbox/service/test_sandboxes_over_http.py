"""The main paths with real sandboxes, through both clients."""

import asyncio
import dataclasses
import signal
import threading

import httpx
import pytest

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.pool.api import SandboxGone, State
from ale_jax.sandbox.sdk.async_client import AsyncRemoteSandbox, AsyncSandboxClient
from ale_jax.sandbox.sdk.client import Pipes, RemoteSandbox
from ale_jax.sandbox.sdk.streams import MAX_UNREAD
from ale_jax.sandbox.spec import WORK
from tests.sandbox.conftest import SPEC
from tests.sandbox.service.conftest import ANN, BOB, ROOT
from tests.sandbox.service.test_tars import lines_of, tree


def test_a_session_keeps_its_state(remote):
    assert remote.run("cd /tmp; X=5").exit_code == 0
    assert remote.run("echo $PWD $X; exit 3").output == "/tmp 5\n"


def test_a_non_zero_exit_code_is_data(remote):
    result = remote.run("echo no >&2; false")
    assert (result.exit_code, result.output, result.timed_out) == (1, "no\n", False)


def test_a_timeout_is_data(remote):
    result = remote.run("echo before; sleep 60", timeout=0.2)
    assert (result.exit_code, result.timed_out, result.output) == (124, True, "before\n")


def test_sessions_are_apart_and_are_closed(remote):
    remote.open_session("other", env={"X": "7"}, cwd="/tmp")
    assert remote.run("echo $X $PWD", session="other").output == "7 /tmp\n"
    assert remote.run("echo $X").output == "\n"
    with pytest.raises(SandboxError, match="other"):
        remote.open_session("other")
    remote.close_session("other")
    with pytest.raises(SandboxError):
        remote.run("true", session="other")


def test_an_interrupt_reaches_the_command(remote):
    assert remote.interrupt() is False
    results = []
    thread = threading.Thread(target=lambda: results.append(remote.run("sleep 1234")))
    thread.start()
    # Between two commands it would reach the shell alone, which lives on.
    while "sleep\0001234" not in remote.exec("cat /proc/[0-9]*/cmdline").stdout:
        pass
    assert remote.interrupt() is True
    thread.join()
    assert results[0].exit_code == 128 + signal.SIGINT


def test_a_dialogue_with_a_command(remote):
    remote.begin("read -p 'name? ' name; echo hello $name; exit 3")
    first = remote.expect(r"\? ")
    assert (first.output, first.matched, first.exit_code) == ("name? ", True, None)
    with pytest.raises(SandboxError, match="busy"):
        remote.run("true")
    remote.send("joe\n")
    last = remote.expect(timeout=5.0)
    assert (last.output, last.matched, last.exit_code) == ("hello joe\n", False, 3)
    remote.begin("stty size", rows=30, columns=100)
    assert remote.expect().output == "30 100\n"
    with pytest.raises(ValueError, match="rows: Input should be less than or equal to 1000"):
        remote.begin("true", rows=1001)
    with pytest.raises(ValueError, match="no regular expression"):
        remote.expect("(")


def commands(box) -> str:
    return box.run("tr '\\0' ' ' < <(cat /proc/[0-9]*/cmdline 2>&-)").output.replace("tr '", "")


def test_files_are_bytes(remote):
    files = {'a b/ä%20".bin': b"\0\xff\r\n--", "empty": b"", "n\nl": b"x"}
    remote.write(files)
    assert {path: remote.read(path) for path in files} == files
    assert remote.read('a b/ä%20".bin', max_bytes=2) == b"\0\xff"
    assert sorted((each.name, each.bytes) for each in remote.list() if each.kind == "file") == [
        ("empty", 0),
        ("n\nl", 1),
    ]


def test_what_is_no_file_is_not_read(remote):
    remote.run("ln -s /etc/passwd link; mkfifo pipe")
    for path in ("link", "pipe", "nothing", "/work"):
        with pytest.raises(FileNotFoundError):
            remote.read(path)
    for path in ("../etc/passwd", f"{WORK}/../etc/passwd"):
        with pytest.raises(ValueError, match=r"\.\."):
            remote.read(path)
        with pytest.raises(ValueError, match="path"):
            remote.write({path: b""})


def test_a_file_that_does_not_fit_is_an_os_error(remote):
    with pytest.raises(OSError, match="No space"):
        remote.write({"big": bytes(SPEC.files_mb + 1 << 20)})


def test_a_directory_goes_in_and_comes_out(remote, tmp_path):
    (tmp_path / "in/deep").mkdir(parents=True)
    (tmp_path / "in/deep/x").write_bytes(b"\0x")
    (tmp_path / "in/run.sh").write_text("echo ran")
    (tmp_path / "in/run.sh").chmod(0o755)
    remote.upload(tmp_path / "in", f"{WORK}/project")
    assert remote.run("cd project && ./run.sh; cd ..").output == "ran\n"
    remote.download(f"{WORK}/project", tmp_path / "out")
    assert (tmp_path / "out/deep/x").read_bytes() == b"\0x"
    assert (tmp_path / "out/run.sh").stat().st_mode & 0o777 == 0o755


def test_times_and_links_go_in_and_come_out(remote, tmp_path):
    tree(tmp_path / "in")
    remote.upload(tmp_path / "in", f"{WORK}/project")
    listed = remote.run(
        "cd project; cat d/e/top; stat -c ' %Y' d/e/file d/e; ls -l up; cd .."
    ).output
    assert listed.startswith("text -1\n 126143999\n") and listed.endswith("up -> d\n")
    zipped = remote.exec("python3 -m zipfile -c x.zip project/d/e/run; echo $?")
    assert zipped.stdout == "0\n", zipped
    remote.run("ln project/d/e/file project/hard; touch -d @1234567890 project/hard")
    remote.download(f"{WORK}/project", tmp_path / "out")
    assert (tmp_path / "out/hard").stat().st_mtime == 1234567890
    (tmp_path / "out/hard").unlink()
    assert [each for each in lines_of(tmp_path / "out") if each[0] != "d/e/file"] == [
        each for each in lines_of(tmp_path / "in") if each[0] != "d/e/file"
    ]


def test_what_the_agent_packed_does_not_lead_out(remote, tmp_path):
    remote.run("mkdir d; ln -s /etc d/link")
    with pytest.raises(ValueError, match="link' is a link to '/etc'"):
        remote.download(f"{WORK}/d", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.heavy
def test_snapshots_and_forks_have_the_files(real, remote):
    remote.write({"x": b"kept"})
    snapshot = remote.snapshot()
    with real.client() as client, client.start(SPEC, snapshot=snapshot.id) as other:
        assert other.read("x") == b"kept"
    forks = remote.fork(2)
    remote.write({"x": b"changed", "y": b"new"})
    for fork in forks:
        with fork:
            assert fork.read("x") == b"kept"
    remote.restore(snapshot.id)
    assert remote.read("x") == b"kept" and len(remote.list()) == 1
    with pytest.raises(ValueError, match="snapshot"):
        remote.restore("0" * 64)


def test_processes_are_killed_and_files_are_kept(remote):
    remote.write({"x": b"kept"})
    remote.run("sleep 300 & sleep 300 &")
    assert remote.run("pgrep -c sleep").output.strip() == "2"
    remote.kill_processes()
    assert remote.run("pgrep -c sleep").output.strip() == "0"
    assert remote.read("x") == b"kept"
    remote.reset()
    assert remote.list() == []


@pytest.mark.heavy
def test_leaving_the_block_stops_it(real):
    with real.client() as client:
        with client.start(SPEC, labels={"for": "test"}) as box:
            status = box.status()
            assert box.alive() and status.labels == {"for": "test", "tenant": "ann"}
            assert status.spec == SPEC and status.state is State.RUNNING
        assert box.status().state is State.STOPPED
        with pytest.raises(SandboxGone) as gone:
            box.run("true")
        assert gone.value.cause == "stopped"
        box.close()


@pytest.mark.heavy
def test_the_first_of_several_are_taken(real):
    with real.client() as client:
        boxes = client.start_many(SPEC, 2, spare=1)
        assert len({box.id for box in boxes}) == 2
        assert [box.run("echo hi").output for box in boxes] == ["hi\n"] * 2
        for box in boxes:
            box.close()


def test_a_terminal_is_one(remote):
    with remote.terminal("stty size; read x; echo got $x; stty size; exit 7", 30, 100) as terminal:
        shown = iter(terminal)
        assert next(shown).startswith(b"30 100")
        terminal.resize(31, 101)
        terminal.send(b"yes\n")
        assert b"".join(shown).endswith(b"got yes\r\n31 101\r\n")
        assert terminal.exit_code == 7


def test_leaving_a_terminal_ends_its_command(remote):
    with remote.terminal("echo begun; sleep 876") as terminal:
        assert next(iter(terminal)).startswith(b"begun")
    for _ in range(200):
        if "sleep 876" not in commands(remote):
            return
    pytest.fail("it runs on")


def test_leaving_a_terminal_that_nobody_reads_ends_its_command(remote):
    with remote.terminal("stty raw -echo; echo begun; sleep 765") as terminal:
        assert next(iter(terminal)).startswith(b"begun")
        terminal.send(b"x" * (640 << 10))  # more than its pipes take, less than is refused
    for _ in range(200):
        if "sleep 765" not in commands(remote):
            return
    pytest.fail("it runs on")


@pytest.mark.parametrize("end", [list, Pipes.close, lambda pipes: pipes.__exit__(None, None, None)])
def test_what_the_command_will_not_read_is_refused(remote, end):
    with remote.pipes("head -c 1; sleep 0.5") as pipes:
        refused = threading.Event()

        def feed():
            with pytest.raises(SandboxError, match="no more input"):
                pipes.send(b"x" * (2 << 20))
            refused.set()

        threading.Thread(target=feed, daemon=True).start()
        assert next(iter(pipes)) == ("stdout", b"x")
        end(pipes)
        assert refused.wait(60)
        for _ in range(MAX_UNREAD + 1):
            with pytest.raises(SandboxError, match="no more input"):
                pipes.send(b"more")


def test_a_terminal_of_anothers_or_nobodys_sandbox_is_refused(real, remote):
    status = remote.status()
    with real.client(BOB) as bob:
        for id in (remote.id, "nobody"):
            box = RemoteSandbox(AsyncRemoteSandbox(bob.later, dataclasses.replace(status, id=id)))
            with box.terminal("echo in") as terminal, pytest.raises(SandboxGone):
                assert list(terminal) == []
    with real.client(ROOT) as admin:
        anns = dataclasses.replace(status, id=f"ann~{remote.id}")
        box = RemoteSandbox(AsyncRemoteSandbox(admin.later, anns))
        with box.terminal("echo in") as terminal:
            assert b"".join(terminal) == b"in\r\n"


def test_a_client_that_hangs_up_during_a_command_does_no_harm(real, remote):
    with real.http(ANN) as http:
        line = {"command": "echo begun > log; sleep 0.3; echo ended >> log; echo out"}
        path, headers = f"/v1/sandboxes/{remote.id}/run", {"X-Request-Id": "again"}
        with pytest.raises(httpx.ReadTimeout):
            http.post(path, json=line, headers=headers, timeout=0.1)
        answer = http.post(path, json=line, headers=headers)
    assert answer.json()["output"] == "out\n"
    assert remote.read("log") == b"begun\nended\n"


@pytest.mark.heavy
def test_kept_ready_and_counted(real):
    with real.client(ROOT) as admin:
        admin.warm(SPEC, 1)
        admin.warm(SPEC, 0)
        (node,) = admin.nodes()
        assert node.alive and node.slots == 8
        assert admin.stats()["slots"] == 8


@pytest.mark.heavy
def test_the_asynchronous_twin_does_the_same(real, tmp_path):
    async def use():
        async with AsyncSandboxClient(real.url, ANN) as client:
            async with client.start(SPEC) as box:
                results = await asyncio.gather(*(box.exec(f"echo {n}") for n in range(4)))
                assert [each.stdout for each in results] == [f"{n}\n" for n in range(4)]
                await box.write({"d/x": b"1"})
                await box.download(f"{WORK}/d", tmp_path / "out")
                await box.upload(tmp_path / "out", f"{WORK}/again")
                assert await box.read("again/x") == b"1"
                async with box.spawn("echo a; exit 2") as output:
                    assert [piece async for piece in output] == [("stdout", b"a\n")]
                    assert output.exit_code == 2
                async with box.terminal("read x; exit $x") as terminal:
                    await terminal.send(b"6\n")
                    assert [each async for each in terminal] and terminal.exit_code == 6
                again = await client.attach(box.id)
                assert await again.alive()
            assert not await again.alive()
            other = await client.start(SPEC)
            await other.close()
            with pytest.raises(SandboxGone):
                await other.run("true")

    asyncio.run(use())
    assert (tmp_path / "out/x").read_bytes() == b"1"
