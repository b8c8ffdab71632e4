"""A person at a terminal: a pseudo terminal, what is typed there, and what is seen."""

import contextlib
import fcntl
import os
import pty
import re
import select
import subprocess
import termios
import time
from pathlib import Path

CTRL_C, CTRL_D, LEFT, UP = "\x03", "\x04", "\x1b[D", "\x1b[A"
CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
PATIENCE_S = 120  # only until a test fails


class Person:
    """At the terminal of a program, which is in its foreground."""

    def __init__(self, line, env):
        self._terminal, inside = pty.openpty()
        self._process = subprocess.Popen(
            line,
            env=env,
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(inside)
        self._seen = ""

    def type(self, text):
        os.write(self._terminal, text.encode())

    def press_ctrl_c(self):
        """Presses it once the program waits for what is typed: between writing its prompt and
        waiting, Python's readline takes note of a signal, and looks at it after the next key."""
        until = time.monotonic() + PATIENCE_S
        while (state := self._state()) != "S":
            assert time.monotonic() < until, f"the program's state is {state}"
            time.sleep(0.01)
        self.type(CTRL_C)

    def send(self, signal):
        self._process.send_signal(signal)

    def wait_for(self, text):
        """Returns what is seen from here to the end of the text."""
        until = time.monotonic() + PATIENCE_S
        while text not in self._seen:
            assert self._read(until), f"{text!r} is not in {self._seen!r}"
        seen, _, self._seen = self._seen.partition(text)
        return seen + text

    def exit_code(self):
        until = time.monotonic() + PATIENCE_S
        while self._read(until):
            pass
        return self._process.wait(PATIENCE_S)

    def _state(self):
        status = Path(f"/proc/{self._process.pid}/stat").read_text()
        return status.rpartition(")")[2].split()[0]

    def _read(self, until):
        if not select.select([self._terminal], [], [], until - time.monotonic())[0]:
            return False
        try:
            more = os.read(self._terminal, 1 << 16)
        except OSError:  # nobody has the other end any more
            return False
        self._seen = CONTROLS.sub("", self._seen + more.decode(errors="replace"))
        return True

    def leave(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        self._process.wait()
        os.close(self._terminal)


@contextlib.contextmanager
def person_at(line, env):
    person = Person(line, env)
    try:
        yield person
    finally:
        person.leave()
