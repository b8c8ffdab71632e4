"""Attacks on shared resources: processes, memory, disk, cores, the channel for output."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.sandbox.attacks.attack import (
    Arena,
    Attack,
    Breach,
    evidence,
    require,
    require_alive,
)
from benchmarks.sandbox.host_view import runner_pid

RESOURCES = "resources"
BOMB = "bomb() { bomb | bomb & }; bomb"
FLOOD_BYTES, FILES = 1 << 30, 100_000
HOG = "python3 -c 'import time; x = b\"x\" * ({megabytes} << 20); time.sleep(1); print(1)'"
SPIN = "import os\nwhile True:\n    os.urandom(4096)\n"


def _fork_bomb(arena: Arena) -> str:
    result = arena.box.run(f"{BOMB}; sleep {arena.load_seconds}", timeout=arena.load_seconds + 1)
    arena.box.kill_processes()
    require(result.exit_code in (0, 124, 254), f"exit code {result.exit_code}")
    return evidence(result.output) or f"exit code {result.exit_code}"


def _lasting_fork_bomb(arena: Arena) -> str:
    arena.box.run(BOMB, timeout=0.5)
    arena.box.run("exit")
    arena.box.reset()
    left = arena.box.run("tr '\\0' ' ' < <(cat /proc/[0-9]*/cmdline)").output
    return require("bomb" not in left, f"{left.count('bomb')} are left after a reset")


def _pids(arena: Arena) -> str:
    many = 2 * arena.spec.pids
    command = f"for i in {{1..{many}}}; do sleep 9 & done 2>&1; jobs -p | wc -l"
    result = arena.box.run(command, timeout=1.0)
    last = evidence(result.output, line=-1)
    if last.isdecimal():
        require(int(last) < arena.spec.pids, f"{last} processes run")
    return last or f"exit code {result.exit_code}"


def _memory(arena: Arena) -> str:
    result = arena.box.run(HOG.format(megabytes=10 << 10), timeout=5.0)
    require(result.exit_code in (1, 137), f"exit code {result.exit_code}")
    return "MemoryError" if "MemoryError" in result.output else f"killed ({result.exit_code})"


def _memory_together(arena: Arena) -> str:
    hog = HOG.format(megabytes=arena.spec.memory_mb * 2 // 5)
    result = arena.box.run(f"for i in 1 2 3 4; do {hog} & done; wait", timeout=5.0)
    lived = len(re.findall("^1$", result.output, re.MULTILINE))
    return require(lived < 4, f"{4 - lived} of 4 are killed")


def _shell_memory(arena: Arena) -> str:
    result = arena.box.run("x=x; while :; do x=$x$x; done", timeout=5.0)
    require(result.exit_code in (2, 137), f"exit code {result.exit_code}")
    return f"the shell ends ({result.exit_code})"


def _order_of_killing(arena: Arena) -> str:
    command = "cat /proc/self/oom_score_adj"
    scores = {arena.box.run(command).output.strip(), arena.box.exec(command).stdout.strip()}
    runners = Path(f"/proc/{runner_pid(arena.box.later)}/oom_score_adj").read_text().strip()
    seen = f"oom_score_adj {', '.join(scores)}, the runner's {runners}"
    return require(scores == {"1000"} and int(runners) <= 0, seen)


# Takes memory in ways that leave no process to blame, and shields itself from the OOM killer.
SHIELD = "open('/proc/self/oom_score_adj', 'w').write('0')\n"
HOARDS = {
    "semaphores": (
        "import ctypes\nlibc = ctypes.CDLL(None)\nwhile libc.semget(0, 32000, 0o600) >= 0: pass"
    ),
    "messages": (
        "import ctypes\nlibc = ctypes.CDLL(None)\ntext = ctypes.create_string_buffer(b'1' * 8200)\n"
        "while (queue := libc.msgget(0, 0o600)) >= 0:\n"
        "    while libc.msgsnd(queue, text, 8192, 0o4000) == 0: pass"
    ),
    "socket buffers": (
        "import os, socket\nfor _ in range(5): os.fork()\nkeep = []\n"
        "while True:\n"
        "    keep.append(socket.socketpair())\n"
        "    keep[-1][0].setblocking(False)\n"
        "    try:\n"
        "        while True: keep[-1][0].send(b'x' * 60000)\n"
        "    except BlockingIOError: pass"
    ),
    "many small processes": (
        "import os, time\nfor _ in range(5): os.fork()\nx = b'x' * (8 << 20)\ntime.sleep(2)"
    ),
}


def _hoards(what: str) -> Attack:
    def play(arena: Arena) -> str:
        arena.box.write({"hoard.py": f"{SHIELD}{HOARDS[what]}\n".encode()})
        began = arena.box.run("python3 -S hoard.py", timeout=arena.load_seconds + 1)
        arena.box.kill_processes()
        require_alive(arena.box)
        return f"exit code {began.exit_code}, then as new"

    return Attack(f"hoards {what}", RESOURCES, "the runner is outside of the group", play)


def _files_like_memory(arena: Arena) -> str:
    megabytes = arena.spec.memory_mb // 4
    content = bytes(megabytes << 20)
    with arena.another(files_mb=megabytes) as box:
        box.write({"f": content})
        require(box.read("f", len(content)) == content, "it comes back changed")
        require_alive(box)
    return f"{megabytes} MB of {arena.spec.memory_mb} MB, in pieces"


def _disk(directory: str) -> Attack:
    def play(arena: Arena) -> str:
        result = arena.box.run(f"dd if=/dev/zero of={directory}/big bs=1M count=100")
        size = arena.box.run(f"stat -c %s {directory}/big").output.strip()
        require(size == str(arena.spec.files_mb << 20), f"{size} bytes are written")
        if directory == "/work":
            _refuses_a_write(arena)
        return require("No space left" in result.output, f"No space left at {size} bytes")

    return Attack(f"fills {directory}", RESOURCES, "a tmpfs of its size", play)


def _refuses_a_write(arena: Arena) -> None:
    try:
        arena.box.write({"f": b"x" * 10_000})
    except OSError:
        return
    raise Breach("a full disk took a further file")


def _many_files(arena: Arena) -> str:
    count = int(FILES * arena.effort)
    make = f"mkdir m; cd m; seq {count} | xargs touch"
    result = arena.box.run(make, timeout=arena.load_seconds + 5)
    arena.box.reset()
    left = arena.box.run("ls -A /work /tmp | wc -l").output.strip()
    require(left == "3", f"{left} lines are listed after a reset")
    return f"{count} files, exit code {result.exit_code}; reset removes them"


def _output(arena: Arena) -> str:
    flood = int(FLOOD_BYTES * arena.effort)
    result = arena.box.run(f"yes | head -c {flood}", timeout=60.0)
    kept = len(result.output)
    require(kept < arena.spec.output_bytes + 100, f"{kept} characters are kept")
    counted = result.omitted_bytes == flood - arena.spec.output_bytes
    return require(counted, f"{kept} characters kept, {result.omitted_bytes} bytes counted")


def _endless_output(arena: Arena) -> str:
    result = arena.box.run("yes", timeout=arena.load_seconds)
    return require(result.timed_out, f"exit code {result.exit_code}")


def _background_output(arena: Arena) -> str:
    arena.box.run("setsid yes &")
    code = arena.box.run("echo here").exit_code
    return require(code == 0, f"the next command's exit code is {code}")


def _spin(arena: Arena) -> str:
    arena.box.write({"spin.py": SPIN.encode()})
    count = arena.spec.pids // 2
    command = f"for i in {{1..{count}}}; do python3 -S spin.py & done; sleep {arena.load_seconds}"
    result = arena.box.run(command, timeout=arena.load_seconds + 5)
    arena.box.kill_processes()
    return require(result.exit_code == 0, f"{count} of them, then killed")


def _timeout(arena: Arena) -> str:
    result = arena.box.run("trap '' TERM INT; (trap '' TERM; setsid sleep 999) & sleep 999", 0.3)
    require(result.timed_out, "it went on")
    left = arena.box.run("tr '\\0' ' ' < <(cat /proc/[0-9]*/cmdline)").output
    # Not the number alone, which may be a pid in the listing's own command line.
    return require("sleep 999" not in left, f"{left.count('sleep 999')} of its processes are left")


GROUP_MEMORY = "memory of the control group"
ATTACKS = (
    Attack("a fork bomb", RESOURCES, "pids limit", _fork_bomb),
    Attack(
        "a fork bomb that stays behind",
        RESOURCES,
        "kill(-1) until none is left",
        _lasting_fork_bomb,
    ),
    Attack("more processes than allowed", RESOURCES, "pids limit", _pids),
    Attack("allocates 10 GB", RESOURCES, GROUP_MEMORY, _memory),
    Attack("allocates in several processes", RESOURCES, GROUP_MEMORY, _memory_together),
    Attack("allocates in the shell itself", RESOURCES, GROUP_MEMORY, _shell_memory),
    Attack("lets the runner be killed for it", RESOURCES, "oom_score_adj", _order_of_killing),
    *(_hoards(what) for what in HOARDS),
    Attack("a file as large as it may be", RESOURCES, "files travel in pieces", _files_like_memory),
    _disk("/work"),
    _disk("/tmp"),
    Attack("very many files", RESOURCES, "the same tmpfs, the same memory", _many_files),
    Attack("a flood of output", RESOURCES, "head and tail are kept", _output),
    Attack("output without end", RESOURCES, "the command's time", _endless_output),
    Attack("output from the background", RESOURCES, "bounded reads", _background_output),
    Attack("spins on every core", RESOURCES, "equal shards for control groups", _spin),
    Attack("ignores the end of its time", RESOURCES, "SIGKILL for the whole tree", _timeout),
)
