"""One process at a time writes to a folder, whichever machine it runs on."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from ale_jax.errors import RunFailed
from ale_jax.system import lease
from ale_jax.system.lease import LEASE_DIR, Lease, Owner, require_free

pytestmark = pytest.mark.heavy

HOLDER = """
import sys
from pathlib import Path
from ale_jax.errors import RunFailed
from ale_jax.system import lease
lease.EXPIRES_S = float(sys.argv[2])
held = lease.Lease.take(Path(sys.argv[1]))
print("held", flush=True)
for line in sys.stdin:
    try:
        held.check()
        print("mine", flush=True)
    except RunFailed as error:
        print(error, flush=True)
held.close()
"""
# Another machine has another name and does not see our processes.
OTHER_MACHINE = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]
if os.geteuid() != 0:
    OTHER_MACHINE[1:1] = ["--user", "--map-root-user"]


def hold(folder, elsewhere=False, expires_s=20.0):
    line = [sys.executable, "-c", HOLDER, str(folder), str(expires_s)]
    if elsewhere:
        line = [*OTHER_MACHINE, 'hostname elsewhere && exec "$@"', "sh", *line]
    pipe = subprocess.PIPE
    holder = subprocess.Popen(line, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
    assert holder.stdout.readline() == "held\n"
    return holder


def ask(holder) -> str:
    print("?", file=holder.stdin, flush=True)
    return holder.stdout.readline().strip()


def end(holder, sign=signal.SIGKILL):
    os.killpg(holder.pid, sign)
    holder.wait()


@pytest.fixture
def short_lease(monkeypatch):
    monkeypatch.setattr(lease, "EXPIRES_S", 3.0)


def test_a_lease_that_was_given_back_is_followed_by_the_next(tmp_path):
    for number in (1, 2):
        held = Lease.take(tmp_path)
        held.check()
        held.close()
        assert held.number == number
        assert os.listdir(tmp_path / LEASE_DIR) == [f"{number:08d}"]


def test_a_lease_is_refused_to_another_machine_while_its_holder_lives(tmp_path):
    holder = hold(tmp_path, elsewhere=True)
    with pytest.raises(ValueError, match="in use by process 1 on elsewhere"):
        Lease.take(tmp_path)
    assert ask(holder) == "mine"
    end(holder)


LAUNCH = """
import sys
from ale_jax.launch import main
code = main(["launch", "--config=configs/smoke.py", f"--workdir={sys.argv[1]}"])
print(code, "jax" in sys.modules)
"""


def test_a_second_run_is_refused_before_it_has_started_jax(tmp_path):
    holder = hold(tmp_path, elsewhere=True)
    refused = subprocess.run(
        [sys.executable, "-c", LAUNCH, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert refused.stdout == "2 False\n"
    assert "in use by process 1 on elsewhere" in refused.stderr
    end(holder)


def test_a_look_takes_nothing(tmp_path, short_lease):
    require_free(tmp_path / "not" / "there")
    holder = hold(tmp_path)
    with pytest.raises(ValueError, match="in use by process"):
        require_free(tmp_path)
    holder.send_signal(signal.SIGSTOP)
    require_free(tmp_path)  # its lease decides, later
    holder.send_signal(signal.SIGCONT)
    assert ask(holder) == "mine"
    end(holder)
    require_free(tmp_path)
    assert os.listdir(tmp_path / LEASE_DIR) == ["00000001"]


def test_the_lease_of_a_machine_that_is_gone_is_taken_over(tmp_path, short_lease, caplog):
    holder = hold(tmp_path, elsewhere=True)
    end(holder)
    held = Lease.take(tmp_path)
    held.check()
    assert held.number == 2
    assert "in use by process 1 on elsewhere, which has been silent" in caplog.text
    held.close()


def test_the_lease_of_a_dead_process_of_this_machine_is_over_at_once(tmp_path, caplog):
    holder = hold(tmp_path)
    end(holder)
    held = Lease.take(tmp_path)
    assert held.number == 2 and not caplog.text
    held.close()


def test_a_process_that_was_stopped_is_told_that_it_was_replaced(tmp_path, short_lease):
    holder = hold(tmp_path, expires_s=3.0)
    assert ask(holder) == "mine"
    holder.send_signal(signal.SIGSTOP)
    held = Lease.take(tmp_path)
    holder.send_signal(signal.SIGCONT)
    assert f"process {os.getpid()} on" in ask(holder)
    held.check()
    # Its end does not give back what belongs to another.
    holder.stdin.close()
    assert holder.wait() == 0
    assert not Owner.read(tmp_path / LEASE_DIR / "00000002").is_gone
    held.close()


def test_a_folder_that_was_removed_ends_the_lease(tmp_path, short_lease):
    held = Lease.take(tmp_path)
    (tmp_path / LEASE_DIR / "00000001").rename(tmp_path / "elsewhere")
    (tmp_path / LEASE_DIR).rmdir()
    deadline = time.monotonic() + 60
    with pytest.raises(RunFailed, match="removed or renamed"):
        while time.monotonic() < deadline:
            held.check()
            time.sleep(0.1)
    held.close()


def test_of_many_processes_one_gets_the_lease(tmp_path):
    code = f"{HOLDER.partition('print')[0]}print('held', flush=True)\nsys.stdin.read()\n"
    line = [sys.executable, "-c", code, str(tmp_path), "20"]
    pipe = subprocess.PIPE
    racers = [
        subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(4)
    ]
    refused = 0
    while refused < 3:  # until only the holder runs
        refused = sum(racer.poll() not in (None, 0) for racer in racers)
        time.sleep(0.1)
    outputs = [racer.communicate() for racer in racers]
    assert sorted(out for out, _ in outputs) == ["", "", "", "held\n"]
    assert sum("in use by process" in error for _, error in outputs) == 3


def written_at_the_second_look(monkeypatch, path, owner):
    """Lets the file of a lease be written between its reader's two looks at it."""
    looks, look = [], lease._touched

    def touched(path):
        looks.append(path)
        if len(looks) == 2:
            path.write_text(json.dumps(dataclasses.asdict(owner)))
        return look(path)

    path.parent.mkdir()
    path.touch()
    monkeypatch.setattr(lease, "_touched", touched)


def test_who_wrote_its_name_meanwhile_is_named(tmp_path, monkeypatch):
    path = tmp_path / LEASE_DIR / "00000001"
    written_at_the_second_look(monkeypatch, path, Owner.this())
    with pytest.raises(ValueError, match=f"in use by process {os.getpid()}"):
        require_free(tmp_path)


def test_who_gives_its_lease_back_meanwhile_is_no_hindrance(tmp_path, monkeypatch):
    path = tmp_path / LEASE_DIR / "00000001"
    released = dataclasses.replace(Owner.this(), released=True)
    written_at_the_second_look(monkeypatch, path, released)
    require_free(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", '{"host": 1}', "\0"])
def test_an_owner_without_a_name_is_unknown(tmp_path, content):
    (tmp_path / "1").write_text(content)
    owner = Owner.read(tmp_path / "1")
    assert str(owner) == "another process" and not owner.is_gone
