"""launch/for_tests.sh: what it says and how it ends, whatever sudo allows by then."""

import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from tests.launch.commands_on_path import CommandsOnPath

pytestmark = pytest.mark.heavy

LAUNCH = Path(__file__).parents[2] / "launch"
PID_FILE = "/var/run/ale/dockerd.pid"
# For a user without a password until the tests have run: there is no Docker daemon yet.
SUDO = """
if arguments[0] != "-n":
    sys.exit("sudo asked for a password")
if arguments[1] == "docker":
    sys.exit(1)
if arguments[1] == "kill" and {expired}:
    sys.exit("sudo: a password is required")
sys.exit(subprocess.call(arguments[1:]))
"""


@pytest.fixture
def dockerd(tmp_path):
    """A process of that name."""
    program = tmp_path / "dockerd"
    shutil.copy(shutil.which("sleep"), program)
    with subprocess.Popen([program, "600"]) as process:
        reaper = threading.Thread(target=process.wait)
        reaper.start()
        yield process
        process.kill()
        reaper.join()


@pytest.mark.parametrize("expired", [True, False])
@pytest.mark.parametrize("code", [0, 1])
def test_it_ends_as_the_tests_do_and_never_asks_for_a_password(tmp_path, dockerd, expired, code):
    commands = CommandsOnPath(tmp_path / "bin")
    commands.add("id", "print(1000)")
    commands.add("apt-get", 'print("installs nothing here")')
    commands.add("sudo", SUDO.replace("{expired}", str(expired)))
    pid_file = tmp_path / "dockerd.pid"
    for name in ("for_tests.sh", "stop_dockerd.sh"):
        text = (LAUNCH / name).read_text()
        assert PID_FILE in text
        script = tmp_path / name
        script.write_text(text.replace(PID_FILE, str(pid_file)))
        script.chmod(0o755)
    for name in ("runtimes.sh", "browser.sh"):
        script = tmp_path / name
        script.write_text(f"#!/bin/sh\necho {dockerd.pid} > {pid_file}\n")
        script.chmod(0o755)
    ended = subprocess.run(
        [tmp_path / "for_tests.sh", "sh", "-c", f"echo tests; exit {code}"],
        env=commands.environment,
        capture_output=True,
        text=True,
    )
    assert "asked for a password" not in ended.stdout + ended.stderr
    assert ended.returncode == code, ended.stderr
    told = "the Docker daemon goes on; stop it as root: " in ended.stdout
    assert told == expired == pid_file.exists()
    if not expired:
        dockerd.wait(60)  # until the reaper knows what the script has seen
    assert (dockerd.poll() is None) == expired
