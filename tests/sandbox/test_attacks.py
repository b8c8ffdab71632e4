"""Hostile commands: what they reach, how much they take, and that the next one still works."""

import threading
import time

import pytest

from ale_jax.sandbox.api import ExecResult
from tests.sandbox.conftest import SPEC, processes


def works(box) -> bool:
    return box.run("echo alive").output == "alive\n"


@pytest.mark.parametrize(
    "command",
    [
        "eval() { :; }; printf() { :; }; read() { :; }; builtin() { :; }; command() { :; }",
        "unset() { :; }; builtin() { :; }; exit() { :; }; echo() { command echo lies; }",
        "declare -rf builtin; alias builtin=true eval=true; shopt -s expand_aliases",
        "set -eu; set -x",
        "set -f -o noclobber -o posix; IFS=0123456789abcdef/",
        "exec 198<&- 199>&- 10>&- 11>&-; true",
        'for fd in {3..250}; do eval "exec $fd>&-"; done',
        "exec > /dev/null 2>&1",
        "exec 1>&- 2>&-",
        "trap 'echo trapped' DEBUG EXIT ERR",
        "trap '' TERM INT HUP CHLD PIPE",
        "ulimit -n 3",
        "ulimit -f 0",
        "PATH=; unset PATH HOME PWD OLDPWD; PWD=lies",
        "readonly __status __token __command REPLY IFS POSIXLY_CORRECT",
        "rm -rf /work /tmp /usr 2> /dev/null; mkdir gone; cd gone; rmdir ../gone",
        "kill -9 -1",
        "kill -9 1 $PPID; kill -STOP 1 $PPID",
        "kill -STOP $$",
        "enable -n read eval printf builtin echo",
        "shopt -s extdebug; trap 'false' DEBUG",
    ],
)
def test_session_survives_or_is_replaced(box, command):
    first = box.run(command, timeout=0.5)
    box.run("true", timeout=0.5)  # what it broke shows at the latest here, and is replaced
    assert isinstance(first, ExecResult)
    box.kill_processes()
    assert works(box)


def test_redefined_builtins_do_not_cost_the_session(box):
    names = ("builtin", "eval", "printf", "read", "unset", "command", "test", "exit")
    box.run("x=5; " + "; ".join(f"{name}() {{ echo no; }}" for name in names))
    assert box.run("echo $x").output == "5\n"


def test_trace_and_strictness_do_not_cost_the_session(box):
    box.run("x=5; set -xu; trap 'false' ERR; IFS=0123456789; cd /tmp")
    assert box.run('echo "$x$PWD"').output.endswith("5/tmp\n")


def test_forged_replies_do_not_pass_for_another_command(box):
    # The session's own bash can find its descriptors; it may lie about this command, not the next.
    forge = r"""printf '%s 7 /tmp\0' "$__token" >&$fd"""
    first = box.run(f"for fd in {{3..250}}; do {forge}; done 2> /dev/null; sleep 0.3; echo late")
    assert first.exit_code == 7
    assert box.run("echo second").exit_code == 137  # the late reply to the first ends the session
    assert box.run("echo third").output == "third\n"


def test_children_hold_nothing_but_their_standard_streams(box):
    assert box.run("ls /proc/self/fd | xargs").output == "0 1 2 3\n"  # 3 is the listing itself


def test_runner_is_out_of_reach(box):
    runner = "$(grep -l readline /proc/[0-9]*/cmdline | grep -v self | head -n 1 | cut -d/ -f3)"
    box.run(f"runner={runner}")
    assert box.run("tr '\\0' ' ' < /proc/$runner/cmdline").output.startswith(
        ("python3 -I", "/sbin/")
    )
    for path in ("fd/0", "fd/1", "mem", "environ", "maps"):
        assert box.run(f"head -c 1 /proc/$runner/{path}").exit_code != 0, path
    box.run("kill -9 $runner; kill -STOP $runner; kill -9 1")
    assert works(box)


def test_no_privileges(box):
    status = box.run("grep -E '^(Cap(Inh|Prm|Eff|Amb)|NoNewPrivs)' /proc/self/status").output
    values = [line.split()[1] for line in status.splitlines()]
    assert values == ["0" * 16] * 4 + ["1"]


@pytest.mark.parametrize(
    "command",
    [
        "mount -t tmpfs none /work",
        "unshare --user --map-root-user true",
        "mknod device c 1 3",
        "chroot / true",
        *(f"touch {place}/x" for place in ("", "/usr", "/etc", "/dev", "/dev/shm", "/var/tmp")),
        "echo x > /proc/sys/kernel/hostname",
        "echo x > /proc/sysrq-trigger",
        "cat /etc/shadow",
        "ls /var/run/docker.sock",
        "chown 0 .",
    ],
)
def test_forbidden(box, command):
    assert box.run(command).exit_code != 0


@pytest.mark.parametrize(
    "address", ["127.0.0.1:22", "169.254.169.254:80", "10.0.0.1:80", "8.8.8.8:53"]
)
def test_no_network(box, address):
    host, port = address.split(":")
    assert box.run(f"exec 3<> /dev/tcp/{host}/{port}", timeout=3).exit_code == 1


def test_no_network_interfaces_but_loopback(box):
    names = [
        line.split(":")[0].strip() for line in box.run("cat /proc/net/dev").output.splitlines()[2:]
    ]
    assert [name for name in names if "lo" in name] == ["lo"]
    assert "eth0" not in names and not box.run("cat /proc/net/route").output.splitlines()[1:]


def test_fork_bomb(box):
    result = box.run("bomb() { bomb | bomb & }; bomb; sleep 1; echo done", timeout=2)
    assert result.exit_code in (0, 124, 254)
    box.kill_processes()
    assert works(box)


def test_fork_bomb_left_running(box):
    box.run("bomb() { bomb | bomb & }; bomb", timeout=0.5)
    box.run("exit")
    assert works(box)
    box.reset()
    assert "bomb" not in processes(box)


def test_pids_are_limited(box):
    count = box.run("for i in {1..100}; do sleep 9 & done; jobs -p | wc -l", timeout=1)
    assert count.timed_out or "retry" in count.output or int(count.output.split()[-1]) < SPEC.pids


def test_memory_is_limited(box):
    assert box.run("python3 -c 'x = b\"x\" * (200 << 20); print(len(x))'").exit_code in (1, 137)
    assert works(box)


def test_memory_of_several_processes_is_limited_together(box):
    hog = "python3 -c 'import time; x = b\"x\" * (40 << 20); time.sleep(1); print(1)'"
    result = box.run(f"for i in 1 2 3 4; do {hog} & done; wait")
    assert result.output.count("1\n") < 4
    assert works(box)


def test_lack_of_memory_kills_the_agent_before_the_runner(box):
    assert box.run("cat /proc/self/oom_score_adj").output == "1000\n"
    assert box.run("cat /proc/$PPID/oom_score_adj").output == "0\n"


def test_session_that_eats_all_memory_is_replaced(box):
    result = box.run("x=x; while :; do x=$x$x; done")
    assert result.exit_code in (2, 137)
    assert works(box)


@pytest.mark.parametrize("directory", ["/work", "/tmp"])
def test_disk_is_limited(box, directory):
    result = box.run(f"dd if=/dev/zero of={directory}/big bs=1M count=100")
    assert "No space left" in result.output
    assert box.run(f"stat -c %s {directory}/big").output == f"{SPEC.files_mb << 20}\n"
    assert works(box)


def test_full_disk_refuses_a_write(box):
    box.run("dd if=/dev/zero of=big bs=1M count=100")
    with pytest.raises(OSError, match="No space left"):
        box.write({"f": b"x" * 10000})
    assert works(box)


def test_flood_of_output_is_counted_not_kept(box):
    result = box.run("yes | head -c 200000000", timeout=20)
    assert len(result.output) < 1100
    assert result.omitted_bytes == 200_000_000 - SPEC.output_bytes


def test_endless_output_ends_with_its_time(box):
    result = box.run("yes", timeout=0.3)
    assert result.timed_out and result.omitted_bytes > 0


def test_flood_from_the_background_does_not_hold_the_next_command(box):
    box.run("setsid yes &")
    assert box.run("echo here").exit_code == 0
    box.kill_processes()
    assert works(box)


def test_shared_memory_does_not_outlive_a_reset(box):
    make = "c = ctypes.CDLL(None); print(c.shmget(7, 4096, 0o1600), c.semget(7, 1, 0o1600))"
    made = box.run(f"python3 -c 'import ctypes; {make}'").output.split()
    assert len(made) == 2
    queue = "print(ctypes.CDLL(None).mq_open(b'/name', 0o102, 0o600, None))"
    assert box.run(f'python3 -c "import ctypes; {queue}"').output == "-1\n"
    assert "-1" not in made
    box.reset()
    assert box.run("tail -qn +2 /proc/sysvipc/*").output == ""


def test_many_files_and_strange_names(box):
    box.run("seq 1 5000 | xargs touch; touch $'new\\nline' -- -rf '*' \"$(printf '\\xff')\"")
    snapshot = box.snapshot()
    box.reset()
    box.restore(snapshot)
    assert box.run("ls -1b | wc -l").output == "5004\n"


def test_sandboxes_do_not_see_each_other(runtime, box):
    with runtime.start(SPEC, {}) as other:
        box.run("echo secret > /tmp/secret; sleep 1234 &")
        assert "sleep" not in processes(other)
        assert other.run("cat /tmp/secret").exit_code == 1
        assert other.run("hostname").output == box.run("hostname").output == "sandbox\n"


def test_a_sandbox_from_a_thread_outlives_the_thread(runtime):
    started = []
    thread = threading.Thread(target=lambda: started.append(runtime.start(SPEC, {})))
    thread.start()
    thread.join()
    time.sleep(0.2)
    with started[0] as sandbox:
        assert works(sandbox)


def test_sandboxes_run_side_by_side(runtime):
    def play(number: int) -> None:
        with runtime.start(SPEC, {}) as sandbox:
            for _ in range(20):
                answers[number].add(sandbox.run(f"x={number}; echo $x").output)

    answers = [set() for _ in range(4)]
    threads = [threading.Thread(target=play, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [{f"{number}\n"} for number in range(4)]


def test_keys_and_sockets_that_no_namespace_holds_are_refused(box):
    script = """
import ctypes, platform, socket
libc = ctypes.CDLL(None, use_errno=True)
add_key = {"x86_64": 248, "aarch64": 217}[platform.machine()]
print(libc.syscall(add_key, b"user", b"name", b"value", 5, -4), ctypes.get_errno())
for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_VSOCK):
    try:
        print(socket.socket(family).fileno() > 0)
    except OSError as error:
        print(error.errno)
"""
    box.write({"probe.py": script.encode()})
    assert box.run("python3 probe.py").output == "-1 1\nTrue\nTrue\n97\n"
