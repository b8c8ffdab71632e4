"""What libraries print goes to a file, so that the run's own lines can be read."""

import logging
import os
import subprocess
import sys
import threading
import warnings

import pytest

from ale_jax.system.library_log import LIBRARY_LOG_FILE, LibraryLog

pytestmark = pytest.mark.heavy

FULL = "/dev/full"  # every write to it fails for want of space


def _fail():
    raise OSError("no space for the library")


class Dying:
    def __del__(self):
        raise OSError("no space at the end")


def test_logs_and_failed_threads_and_what_nobody_can_catch_are_kept(tmp_path, capfd):
    hooks = threading.excepthook, sys.unraisablehook, logging.getLogger().handlers
    with LibraryLog(tmp_path):
        logging.getLogger("orbax").warning("a slow disk")
        warnings.warn("never awaited", RuntimeWarning, stacklevel=1)
        thread = threading.Thread(target=_fail, name="writer")
        thread.start()
        thread.join()
        Dying()
    text = (tmp_path / LIBRARY_LOG_FILE).read_text()
    assert "WARNING orbax: a slow disk\n" in text and "RuntimeWarning: never awaited" in text
    assert "the thread writer ended\nTraceback" in text and "no space for the library" in text
    assert "Dying.__del__" in text and "no space at the end" in text
    assert capfd.readouterr() == ("", "")
    assert (threading.excepthook, sys.unraisablehook, logging.getLogger().handlers) == hooks


def test_a_quiet_run_has_no_such_file(tmp_path):
    with LibraryLog(tmp_path):
        pass
    assert not (tmp_path / LIBRARY_LOG_FILE).exists()


def test_a_full_disk_does_not_make_the_log_speak(tmp_path, capfd):
    os.symlink(FULL, tmp_path / LIBRARY_LOG_FILE)
    with LibraryLog(tmp_path):
        logging.getLogger("orbax").error("no space")
    assert capfd.readouterr() == ("", "")


def test_a_file_that_cannot_be_opened_does_not_make_whoever_logs_fail(tmp_path, capfd):
    (tmp_path / LIBRARY_LOG_FILE).mkdir()
    with LibraryLog(tmp_path):
        logging.getLogger("orbax").error("a slow disk")
        warnings.warn("never awaited", RuntimeWarning, stacklevel=1)
    assert capfd.readouterr() == ("", "")


FAILS = """
import atexit, logging, sys, threading, warnings
from ale_jax import launch
def main(argv):
    atexit.register(lambda: 1 / 0)
    print("error: the one line", file=sys.stderr)
    return int(argv[1])
launch.main = main
code = launch.main_program(sys.argv)
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
logging.getLogger("library").error("at exit")
warnings.warn("never awaited", RuntimeWarning)
sys.exit(code)
"""


def _exit(code):
    return subprocess.run([sys.executable, "-c", FAILS, str(code)], capture_output=True, text=True)


def test_an_expected_failure_has_the_last_word():
    assert _exit(2).stderr == "error: the one line\n"
    bug = _exit(1).stderr  # nothing of it is hidden
    assert bug.count("ZeroDivisionError") == 2 and "never awaited" in bug
