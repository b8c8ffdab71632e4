"""Attacks on the runner and on what a reset must bring back: limits, priorities, sysctls."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.sandbox.attacks.attack import Arena, Attack, require, require_alive
from benchmarks.sandbox.host_view import runner_pid

RUNNER = "runner"
OTHERS = "for pid in 1 $PPID $(ls /proc | grep -E '^[0-9]+$' | grep -vx $$)"
WAYS = {
    "interrupts it": "kill -INT 1; pkill -INT python3; kill -CHLD 1; true",
    "limits it": (
        f"{OTHERS}; do for limit in fsize nofile cpu as nproc stack core; "
        "do prlimit --pid $pid --$limit=6:6; done; done"
    ),
    "slows it down": (
        f"{OTHERS}; do renice 19 -p $pid; chrt -i -p 0 $pid; taskset -cp 0 $pid; "
        "ionice -c3 -p $pid; done; renice 19 -u $(id -u)"
    ),
    "becomes its user": (
        'python3 -c \'import os, resource; os.setuid(os.stat("/proc/1").st_uid or 2000000000); '
        "resource.prlimit(1, resource.RLIMIT_FSIZE, (6, 6))'"
    ),
}
SYSCTLS = (
    "for name in kernel/shmmax kernel/msgmni kernel/sem net/ipv4/ip_forward "
    "net/ipv4/tcp_syncookies user/max_user_namespaces; do echo 1 > /proc/sys/$name; done"
)
STATE = (
    "ulimit -a; nice; chrt -p $$ | cut -d: -f2; taskset -p $$ | cut -d: -f2; "
    "cat /proc/sys/kernel/s*"
)


def _of_the_host(pid: int) -> tuple:
    """What the kernel says of a process: limits, priority, scheduling, affinity."""
    affinity = sorted(os.sched_getaffinity(pid))
    scheduling = (os.getpriority(os.PRIO_PROCESS, pid), os.sched_getscheduler(pid))
    return Path(f"/proc/{pid}/limits").read_text(), scheduling, affinity


def _reaches(way: str, user: str) -> Attack:
    def play(arena: Arena) -> str:
        with arena.another(user=user) as box:
            runner, new = runner_pid(box.later), box.run(STATE).output
            before = _of_the_host(runner)
            answer = box.run(f"({WAYS[way]}) > /dev/null", timeout=5.0)
            require(_of_the_host(runner) == before, "the runner is changed")
            box.reset()
            require(box.run(STATE).output == new, "a new session is changed")
            box.write({"f": b"x" * 10_000})
            require_alive(box)
        refusals = [line for line in answer.output.splitlines() if line.strip()]
        return refusals[0][-60:] if refusals else "without effect"

    return Attack(f"{way}, as {user}", RUNNER, "namespaces, or a user of its own", play)


def _writes_sysctls(user: str) -> Attack:
    def play(arena: Arena) -> str:
        with arena.another(user=user) as box:
            output = box.run(SYSCTLS).output
        count = output.count("Read-only file system")
        return require(count == 6, f"{count} of 6 are read-only")

    return Attack(f"writes sysctls, as {user}", RUNNER, "read-only /proc/sys", play)


def _keeps_shared_memory(arena: Arena) -> str:
    require(arena.box.run("echo x > /dev/shm/x").exit_code == 0, "/dev/shm cannot be written")
    arena.box.reset()
    left = arena.box.run("ls -A /dev/shm").output
    return require(left == "", f"{left.strip()} is left after a reset")


ATTACKS = (
    *(_reaches(way, user) for way in WAYS for user in ("agent", "root")),
    *(_writes_sysctls(user) for user in ("agent", "root")),
    Attack("leaves files in /dev/shm", RUNNER, "emptied by a reset", _keeps_shared_memory),
)
