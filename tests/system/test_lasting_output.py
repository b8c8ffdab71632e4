"""Nobody has to read what a run prints; its exit code stays the one that it would have had."""

import contextlib
import errno
import os
import subprocess
import sys

import pytest

from ale_jax.system.lasting_output import lasting

pytestmark = pytest.mark.heavy


@contextlib.contextmanager
def unread_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    yield writer


@contextlib.contextmanager
def lost_terminal():
    controller, terminal = os.openpty()
    os.close(controller)
    yield terminal


@pytest.mark.parametrize("lost", [unread_pipe, lost_terminal])
@pytest.mark.parametrize("options", [{"buffering": 1}, {"buffering": -1}])
def test_what_cannot_be_shown_is_dropped(lost, options):
    with lost() as descriptor, open(descriptor, "w", **options) as plain:
        stream = lasting(plain)
        for _ in range(2):
            print("a line", file=stream, flush=True)
        stream.close()


def test_it_is_written_as_before():
    reader, writer = os.pipe()
    with open(writer, "w", encoding="latin-1", errors="replace", buffering=1) as plain:
        stream = lasting(plain)
        print("caf\N{LATIN SMALL LETTER E WITH ACUTE} \N{FULL BLOCK}", file=stream)
        assert os.read(reader, 100) == b"caf\xe9 ?\n"  # at the end of the line, and so encoded
    os.close(reader)


def test_a_full_disk_is_no_lost_display():
    with open("/dev/full", "w") as plain:
        stream = lasting(plain)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            print("a line", file=stream, flush=True)
        with contextlib.suppress(OSError):
            stream.close()


PRINTS = """
import sys
from ale_jax import launch
def main(argv):
    print("what a run prints", flush=True)
    print("error: or why it ends", file=sys.stderr)
    print("and what is still in a buffer")
    return int(argv[1])
launch.main = main
sys.exit(launch.main_program(sys.argv))
"""


@pytest.mark.parametrize("code", [0, 2, 130])
def test_a_process_ends_with_its_own_code_though_nobody_reads_what_it_prints(code):
    line = [sys.executable, "-c", PRINTS, str(code)]
    with unread_pipe() as unread:
        done = subprocess.run(line, stdout=unread, stderr=subprocess.PIPE, text=True)
        assert (done.returncode, done.stderr) == (code, "error: or why it ends\n")
        assert subprocess.run(line, stdout=unread, stderr=unread).returncode == code
        os.close(unread)
