"""Attacks on other sandboxes through what the kernel counts for each user of the host."""

from __future__ import annotations

from benchmarks.sandbox.attacks.attack import AGENT, USERS, Arena, Attack, require

NEIGHBOURS = "neighbours"
FIRST = """
import array, ctypes, os, signal, socket, time
libc = ctypes.CDLL(None, use_errno=True)
"""
LAST = "print('all'); time.sleep(40)\n"
# What takes all that it can get, and what another sandbox must still be able to do.
HOARDS = {
    "inotify instances": (
        "while libc.inotify_init1(0) >= 0: pass",
        "print(libc.inotify_init1(0) >= 0)",
    ),
    "terminals": (
        "try:\n    while True: os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY)\nexcept OSError: pass",
        "print(bool(os.openpty()))",
    ),
    "queued signals": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, [40])\n"
        "while libc.sigqueue(os.getpid(), 40, None) == 0: pass",
        "timer = ctypes.c_void_p()\nprint(libc.timer_create(1, None, ctypes.byref(timer)) == 0)",
    ),
    "descriptors in flight": (
        "fds = [os.open('/dev/null', 0) for _ in range(200)]\nkeep = []\n"
        "try:\n"
        "    while True:\n"
        "        pair = socket.socketpair()\n"
        "        keep.append(pair)\n"
        "        pair[0].setblocking(False)\n"
        "        try:\n"
        "            while True: socket.send_fds(pair[0], [b'x'], fds)\n"
        "        except BlockingIOError: pass\n"
        "except OSError: pass",
        "one, other = socket.socketpair()\nprint(socket.send_fds(one, [b'x'], [0]) == 1)",
    ),
}
OWN_USER = "a user of the host for each"
STOPPED_BY = {"terminals": "devpts with a maximum; in Docker, counted every 50 ms"}
RETRY = "for i in $(seq 10); do"  # as counting takes a moment
TAKERS = 4  # processes, since some limits are for each of them


def _takes_all(what: str) -> Attack:
    hoard, need = HOARDS[what]

    def play(arena: Arena) -> str:
        with arena.another() as other:
            other.write({"need.py": f"{FIRST}{need}\n".encode()})
            arena.box.write({"hoard.py": f"{FIRST}{hoard}\n{LAST}".encode()})
            takers = f"for i in $(seq {TAKERS}); do python3 -u hoard.py >> out & done"
            # Words are counted, as two processes may write theirs before either ends its line.
            waits = f"until [ $(grep -o all out | wc -l) = {TAKERS} ]; do sleep 0.05; done"
            taken = arena.box.run(f"touch out; {takers}; {waits}", timeout=30.0)
            require(not taken.timed_out, "could not be tried")
            answer = other.run(f"{RETRY} python3 need.py 2>&1 && break; sleep 0.05; done").output
        return require(answer.endswith("True\n"), f"the other says {answer.strip()[-50:]}")

    # Sandboxes of root are the host's root in Docker, and share what it may have.
    users = USERS if what in STOPPED_BY else AGENT
    return Attack(f"takes all {what}", NEIGHBOURS, STOPPED_BY.get(what, OWN_USER), play, users)


ATTACKS = tuple(_takes_all(what) for what in HOARDS)
