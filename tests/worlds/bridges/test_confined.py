"""What a library may do that evaluates a policy's answers: read, compute, and answer."""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from ale_jax.worlds.bridges import confined

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed"),
]


def told(code):
    process = confined.started([sys.executable, "-c", code], os.environ, subprocess.DEVNULL)
    try:
        return process.communicate(b"")[0].decode()
    finally:
        confined.end(process)


def test_it_writes_nowhere_but_into_its_own_memory(tmp_path):
    code = f"""
import os
for folder in ({str(tmp_path)!r}, "/tmp", os.getcwd()):
    try:
        open(folder + "/x", "w").close()
        print("written", folder)
    except OSError as error:
        print(error.strerror, folder)
"""
    lines = told(code).splitlines()
    assert [line.split(" /")[0] for line in lines] == ["Read-only file system", *["written"] * 2]
    assert not any(map(os.path.exists, ("/dev/shm/x", "/tmp/x", tmp_path / "x")))


def test_it_has_no_network_and_sees_nobody():
    code = """
import json, os, socket
interfaces = [name for _, name in socket.if_nameindex()]
print(json.dumps([interfaces, sum(map(str.isdigit, os.listdir("/proc")))]))
"""
    interfaces, processes = json.loads(told(code))
    assert interfaces == ["lo"] and processes <= 3


def test_its_end_is_the_end_of_all_that_it_started():
    mark = f"{time.time_ns()}"
    code = f"""
import subprocess, sys
subprocess.Popen(["sleep", "3600.{mark}"])
print("on", flush=True)
sys.stdin.read()
"""
    process = confined.started([sys.executable, "-c", code], os.environ)
    assert process.stdout.readline() == b"on\n"
    confined.end(process)
    deadline = time.monotonic() + 20
    while mark in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_without_bubblewrap_it_is_refused(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ValueError, match="apt-get install bubblewrap"):
        confined.started([sys.executable], os.environ)
