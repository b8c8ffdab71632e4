"""Attacks on isolation: privileges, the kernel, the host's files, other sandboxes, the runner."""

from __future__ import annotations

from ale_jax.sandbox.spec import ROOT_CAPABILITIES
from benchmarks.sandbox.attacks.attack import AGENT, Arena, Attack, failure, refused, require
from benchmarks.sandbox.host_view import runner_pid

ISOLATION = "isolation"
# The numbers of ROOT_CAPABILITIES (capabilities(7)).
NUMBERS = {"CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "KILL": 5, "SETGID": 6, "SETUID": 7}
PROBE_KERNEL = """
import ctypes, platform, socket
libc = ctypes.CDLL(None, use_errno=True)
numbers = {"x86_64": (248, 425, 321, 323), "aarch64": (217, 425, 280, 282)}[platform.machine()]
for number in numbers:  # add_key, io_uring_setup, bpf, userfaultfd
    print(libc.syscall(number, b"user", b"name", b"value", 5, -4), ctypes.get_errno())
for family in (socket.AF_VSOCK, socket.AF_PACKET):
    try:
        socket.socket(family, socket.SOCK_RAW if family == socket.AF_PACKET else socket.SOCK_STREAM)
        print("a socket of", family)
    except OSError as error:
        print(-1, error.errno)
"""
PTRACE = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
attach = 16
print(libc.ptrace(attach, int(sys.argv[1]), 0, 0), ctypes.get_errno())
"""


def _privileges(arena: Arena) -> str:
    status = arena.box.run("grep -E '^(Cap...:|NoNewPrivs|Seccomp:)' /proc/self/status").output
    values = dict(line.split(":\t") for line in status.splitlines())
    held = {name: int(values[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")}
    guarded = (values["NoNewPrivs"], values["Seccomp"]) == ("1", "2")
    return require(
        not any(held.values()) and guarded, f"CapEff {held['CapEff']:#x}, {_short(values)}"
    )


def _root_privileges(arena: Arena) -> str:
    with arena.another(user="root") as box:
        status = box.run("grep -E '^(Cap(Eff|Bnd)|NoNewPrivs|Seccomp:)' /proc/self/status").output
    values = dict(line.split(":\t") for line in status.splitlines())
    mask = sum(1 << NUMBERS[name] for name in ROOT_CAPABILITIES)
    held = int(values["CapEff"], 16) == int(values["CapBnd"], 16) == mask
    guarded = (values["NoNewPrivs"], values["Seccomp"]) == ("1", "2")
    return require(held and guarded, f"CapEff {values['CapEff']}, {_short(values)}")


def _short(values: dict[str, str]) -> str:
    return f"NoNewPrivs {values['NoNewPrivs']}, Seccomp {values['Seccomp']}"


def _kernel(arena: Arena) -> str:
    arena.box.write({"probe.py": PROBE_KERNEL.encode()})
    lines = arena.box.run("python3 probe.py").output.splitlines()
    denied = len(lines) == 6 and all(line.startswith("-1 ") for line in lines)
    return require(denied, f"errno {', '.join(line.rpartition(' ')[2] for line in lines)}")


def _traces_init(arena: Arena) -> str:
    arena.box.write({"trace.py": PTRACE.encode()})
    answer = arena.box.run("python3 trace.py 1").output.strip()
    return require(answer == "-1 1", f"ptrace and errno: {answer}")


def _runner(arena: Arena) -> str:
    box = arena.box
    pid = box.run("grep -l readline /proc/[0-9]*/cmdline | grep -v self | cut -d/ -f3").output
    runner = require(pid.strip() != "", pid).split()[0]
    tries = [
        box.run(f"head -c 1 /proc/{runner}/{path}", 2.0)
        for path in ("fd/0", "fd/1", "mem", "environ", "maps")
    ]
    reasons = {failure(each).rpartition(":")[2].strip() for each in tries}
    box.run(f"kill -9 {runner} 1; kill -STOP {runner} 1")
    require(box.run("echo here").output == "here\n", "the runner took a signal")
    return "; ".join(sorted(reasons))


def _others(arena: Arena) -> str:
    with arena.another(env=(("TOKEN", "geheim"),)) as other:
        other.run("echo secret > /tmp/secret; sleep 86399 &")
        pid = runner_pid(other.later)
        seen = arena.box.run(
            "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2> /dev/null | tr '\\0' '\\n'"
            f" | grep -E '8639[9]|gehei[m]'; cat /tmp/secret; kill -9 {pid}"
        )
        require(other.run("cat /tmp/secret").output == "secret\n", "the other's file is changed")
    found = [word for word in ("86399", "geheim", "secret\n") if word in seen.output]
    return require(not found, f"of its process, variable and file, {len(found)} are seen")


def _descriptors(arena: Arena) -> str:
    seen = arena.box.run("ls /proc/self/fd | xargs").output.strip()
    return require(seen == "0 1 2 3", f"it holds {seen}")  # 3 is the listing itself


def _shared_memory(arena: Arena) -> str:
    make = "c = ctypes.CDLL(None); print(c.shmget(7, 4096, 0o1600), c.semget(7, 1, 0o1600))"
    made = arena.box.run(f"python3 -c 'import ctypes; {make}'").output.split()
    require(len(made) == 2 and "-1" not in made, f"could not be tried: {made}")
    queue = "print(ctypes.CDLL(None).mq_open(b'/name', 0o102, 0o600, None))"
    opened = arena.box.run(f'python3 -c "import ctypes; {queue}"').output
    require(opened == "-1\n", "a message queue was made")
    arena.box.reset()
    left = arena.box.run("tail -qn +2 /proc/sysvipc/*").output
    return require(left == "", f"{len(left.splitlines())} segments are left after a reset")


NO_PRIVILEGE = "no capability, no-new-privileges, seccomp"
READ_ONLY, OWN_ETC = "read-only root", "an /etc of its own, no privilege"
ATTACKS = (
    Attack("holds capabilities, or can get some", ISOLATION, NO_PRIVILEGE, _privileges, AGENT),
    Attack("as root, holds more than the six", ISOLATION, "bounding set", _root_privileges),
    refused("mounts a file system", ISOLATION, "mount -t tmpfs none /work", NO_PRIVILEGE),
    refused("makes a user namespace", ISOLATION, "unshare --user -r true", "seccomp, no userns"),
    refused("makes a mount namespace", ISOLATION, "unshare --mount true", NO_PRIVILEGE),
    refused("makes a device", ISOLATION, "mknod device c 1 3", NO_PRIVILEGE),
    refused("changes its root", ISOLATION, "chroot / true", NO_PRIVILEGE),
    refused("gives a file to root", ISOLATION, "chown 0 .", NO_PRIVILEGE, AGENT),
    *(
        refused(f"writes into {place or '/'}", ISOLATION, f"touch {place}/x", READ_ONLY)
        for place in ("", "/usr", "/etc", "/dev", "/proc/sys", "/var/tmp")
    ),
    refused("names the kernel", ISOLATION, "echo x > /proc/sys/kernel/hostname", "read-only /proc"),
    refused("presses SysRq", ISOLATION, "echo x > /proc/sysrq-trigger", "read-only /proc"),
    refused("reads /etc/shadow", ISOLATION, "cat /etc/shadow", OWN_ETC, AGENT),
    refused("finds docker.sock", ISOLATION, "ls /var/run/docker.sock", "it is not mounted"),
    refused("reads the kernel's memory", ISOLATION, "head -c 1 /dev/mem", "a /dev of its own"),
    Attack("calls what no namespace holds", ISOLATION, "seccomp filter", _kernel),
    Attack("traces process 1", ISOLATION, "other ids, not dumpable", _traces_init),
    Attack("reads and kills the runner", ISOLATION, "other ids, not dumpable, is init", _runner),
    Attack("sees another sandbox", ISOLATION, "namespaces of its own", _others),
    Attack("inherits descriptors", ISOLATION, "closed before the shell starts", _descriptors),
    Attack("leaves shared memory behind", ISOLATION, "reset removes it", _shared_memory),
)
