"""launch/ray_slices.py, on a Ray cluster of this machine whose nodes claim to be TPU hosts."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray_slices
from ray._raylet import GcsClient
from ray.cluster_utils import Cluster
from ray_host import Job

from tests.launch.commands_on_path import CommandsOnPath
from tests.launch.test_hosts import NASTY, TINY, free_port
from tests.quick_compile import QUICK_COMPILE
from tests.system.whole_runs import interrupt

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NODE = {"num_cpus": 1, "object_store_memory": 100 << 20}
# Of an earlier job: training waits for ever if it reads them.
STALE = {"MEGASCALE_NUM_SLICES": "7", "MEGASCALE_COORDINATOR_ADDRESS": "10.9.9.9"}
DEADLINE_S = 150.0  # only against a hang
# A process of training that does as its config says: "ATTEMPT;ATTEMPT", each with a word for each
# process, which is its exit code; "waits", which is 130 after SIGTERM; "follows", which is 130 once
# process 0 has ended; or "killed".
TRAINING = """
import signal, time
signal.signal(signal.SIGTERM, signal.default_int_handler)
number = int(arguments[-1].rpartition("=")[2])
attempt = len(list(here.glob(f"begun.{number}.*")))
told = arguments[2].partition("=")[2].split(";")[attempt].split(",")
print("process", number, flush=True)
mine = {name: value for name, value in os.environ.items() if name[:4] in ("TPU_", "MEGA")}
(here / "new").mkdir(exist_ok=True)
(here / f"new/{number}").write_text(json.dumps(mine))
(here / f"new/{number}").rename(here / f"begun.{number}.{attempt}")
code = 130
try:
    while told[number] == "waits" or (
        told[number] == "follows" and not (here / f"ended.0.{attempt}").exists()
    ):
        time.sleep(0.01)
    if told[number] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    code = 130 if told[number] == "follows" else int(told[number])
except KeyboardInterrupt:
    (here / f"saved.{number}.{attempt}").touch()
(here / f"ended.{number}.{attempt}").touch()
sys.exit(code)
"""


def add_slice(cluster, name):
    """Two hosts of four chips, of which Ray reads all but the chips in their environment."""
    for worker in range(2):
        add_host(cluster, name, worker)


def add_host(cluster, name, worker):
    variables = {
        "TPU_NAME": name,
        "TPU_WORKER_ID": str(worker),
        "TPU_ACCELERATOR_TYPE": "v4-16",
        "TPU_TOPOLOGY": "2x2x2",
    }
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in (variables | STALE).items():
            patch.setenv(variable, value)
        node = cluster.add_node(**NODE, resources={"TPU": 4})
    node.is_host = (name, str(worker))


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("XLA_FLAGS", QUICK_COMPILE)
        head = NODE | {"num_cpus": 0, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        for name in ("a", "b"):
            add_slice(cluster, name)
        yield cluster
        cluster.shutdown()


class FakeSlice:
    """whole: whether all of its hosts are there."""

    def __init__(self, name, whole, given_back):
        self.name, self.whole, self.given_back = name, whole, given_back
        self.placement_group = self

    def wait(self, seconds):
        return self.whole

    def shutdown(self):
        self.given_back.append(self.name)


@pytest.fixture
def offer(monkeypatch):
    """What Ray finds, one after another: a name, with ! if it lacks a host; or None. Returns what
    is given back, in order."""

    def replace(*names):
        given_back, left = [], list(names)

        def find(*_, **__):
            if (name := left.pop(0)) is None:
                raise TimeoutError
            return FakeSlice(name, "!" not in name, given_back)

        monkeypatch.setattr(ray_slices, "slice_placement_group", find)
        return given_back

    return replace


def reserved(hosts):
    job = Job("2x2x2", "TPU-V4", slices=2, hosts=hosts, port=1, arguments=())
    return [each.name for each in ray_slices.reserve(job)]


def test_a_slice_that_lacks_a_host_is_held_until_others_are_found(offer):
    given_back = offer("a!", "b", "c!", "d")
    assert reserved(hosts=2) == ["b", "d"] and given_back == ["a!", "c!"]


def test_slices_are_given_back_while_there_are_not_enough(offer):
    given_back = offer("a!", "b", None, "a", "b")
    assert reserved(hosts=2) == ["a", "b"] and given_back == ["a!", "b"]
    given_back = offer("a", "b!", "a", "b")  # of one host: Ray takes any that is free
    assert reserved(hosts=1) == ["a", "b"] and given_back == ["b!", "a"]


class Launches:
    """Of the program, in a folder with a stand-in for training."""

    def __init__(self, folder, cluster):
        self.folder, self.cluster = folder, cluster
        self.begun = []
        (folder / "launch").mkdir()
        (folder / ".venv").mkdir()
        self.training = CommandsOnPath(folder / ".venv/bin")
        self.training.add("python", TRAINING)
        for name in ("ray_host.py", "ray_slices.py"):
            (folder / "launch" / name).write_text((ROOT / "launch" / name).read_text())
        self.set_seconds("PLACE_S", 5)

    def set_seconds(self, name, seconds):
        program = self.folder / "launch/ray_slices.py"
        text = program.read_text()
        assert f"\n{name} = 60.0" in text
        program.write_text(text.replace(f"\n{name} = 60.0", f"\n{name} = {seconds}.0"))

    def begin(self, *arguments, options=()):
        kind = [f"--address={self.cluster.address}", "--topology=2x2x2", "--accelerator=TPU-V4"]
        line = [sys.executable, "launch/ray_slices.py", *kind, *options, "--", *arguments]
        process = subprocess.Popen(
            line, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.begun.append(process)
        return process

    def run(self, *arguments, options=()):
        return finish(self.begin(*arguments, options=options))

    def file(self, kind, number, attempt=0):
        return self.training.folder / f"{kind}.{number}.{attempt}"

    def wait_for(self, kind, numbers, attempt=0):
        wait_until(lambda: all(self.file(kind, each, attempt).exists() for each in numbers))

    def variables(self, number, attempt=0):
        """Of a process: those of TPUs and slices."""
        return json.loads(self.file("begun", number, attempt).read_text())

    def host(self, number, attempt=0):
        """On which it ran: slice and worker."""
        found = self.variables(number, attempt)
        return found["TPU_NAME"], found["TPU_WORKER_ID"]


@pytest.fixture
def launches(tmp_path, cluster):
    launches = Launches(tmp_path, cluster)
    yield launches
    for process in launches.begun:
        process.kill()
        process.wait()


def wait_until(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def finish(process):
    printed, _ = process.communicate(timeout=DEADLINE_S)
    return process.returncode, printed


def test_each_host_of_two_slices_gets_the_same_line_and_knows_its_slice(launches):
    code, printed = launches.run("--config=0,0,0,0", NASTY, options=["--slices=2", "--port=9"])
    assert code == 0, printed
    hosts = [launches.host(number) for number in range(4)]
    assert [worker for _, worker in hosts] == ["0", "1", "0", "1"]
    assert {name for name, _ in hosts[:2]} != {name for name, _ in hosts[2:]}
    assert len(set(hosts)) == 4
    found = [launches.variables(number) for number in range(4)]
    assert [each["MEGASCALE_SLICE_ID"] for each in found] == ["0", "0", "1", "1"]
    assert {each["MEGASCALE_NUM_SLICES"] for each in found} == {"2"}
    assert all("TPU_VISIBLE_CHIPS" not in each for each in found)
    (address,) = {each["MEGASCALE_COORDINATOR_ADDRESS"] for each in found}
    assert address == launches.cluster.head_node.node_ip_address
    same = ["python", "-m", "ale_jax.launch", "--config=0,0,0,0", NASTY]
    place = [f"--coordinator={address}:9", "--processes=4"]
    assert sorted(launches.training.calls()) == [
        [*same, *place, f"--process={number}"] for number in range(4)
    ]
    assert printed.startswith("ray_slices: waiting for 2 x 2x2x2\nprocess 0\nray_slices: ")
    last = (
        f"process 3 (slice 1, worker 1, {address}) ended with 0; its last lines:\n    process 3\n"
    )
    assert printed.endswith(last)


def test_processes_of_one_slice_hear_nothing_of_others(launches):
    assert launches.run("--config=0,0")[0] == 0
    hosts = [launches.host(number) for number in range(2)]
    assert hosts[0][0] == hosts[1][0] and [worker for _, worker in hosts] == ["0", "1"]
    for number in range(2):
        assert not [name for name in launches.variables(number) if name.startswith("MEGASCALE")]


def test_a_refusal_is_passed_on_and_not_repeated(launches):
    code, printed = launches.run("--config=2,2")
    assert code == 2 and "restart" not in printed


def test_after_a_killed_process_the_same_line_runs_again(launches):
    code, printed = launches.run("--config=2,killed;0,0")
    assert code == 0, printed
    assert "process 1 (slice 0, worker 1" in printed and "ended with 137" in printed
    assert printed.count("restart 1 of at most 20") == 1
    calls = launches.training.calls()
    assert sorted(calls[:2]) == sorted(calls[2:])


def test_restarts_are_limited(launches):
    code, printed = launches.run("--config=killed,2;killed,2", options=["--restarts=1"])
    assert code == 2 and printed.count("restart 1 of at most 1") == 1


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_process_0_alone(launches, sign):
    running = launches.begin("--config=waits,follows")
    launches.wait_for("begun", (0, 1))
    running.send_signal(sign)
    code, printed = finish(running)
    assert code == 130 and "restart" not in printed, printed
    assert launches.file("saved", 0).exists() and not launches.file("saved", 1).exists()


def test_a_second_signal_reaches_all(launches):
    launches.set_seconds("PATIENCE_S", 1000)
    running = launches.begin("--config=waits,waits")
    launches.wait_for("begun", (0, 1))
    running.send_signal(signal.SIGTERM)
    launches.wait_for("ended", [0])
    assert not launches.file("ended", 1).exists()
    running.send_signal(signal.SIGTERM)
    assert finish(running)[0] == 130
    assert launches.file("saved", 1).exists()


def test_all_processes_are_told_when_the_program_is_killed(launches):
    running = launches.begin("--config=waits,waits;0,0")
    launches.wait_for("begun", (0, 1))
    running.kill()
    launches.wait_for("saved", (0, 1))
    finish(running)
    assert launches.run("--config=waits,waits;0,0")[0] == 0  # the same line resumes


def kill(cluster, node):
    cluster.remove_node(node, allow_graceful=False)


def drain(cluster, node):
    """What Ray does when the machine of a node is told to end."""
    soon = int((time.time() + 3600) * 1000)
    preempted = 2
    GcsClient(cluster.address).drain_node(node.node_id, preempted, "", soon)


@pytest.mark.parametrize("leave", [kill, drain])
def test_when_a_host_leaves_the_same_line_runs_on_another_slice(launches, cluster, leave):
    launches.set_seconds("PATIENCE_S", 1)
    running = launches.begin("--config=waits,waits;0,0")
    launches.wait_for("begun", (0, 1))
    (node,) = [each for each in cluster.worker_nodes if each.is_host == launches.host(1)]
    leave(cluster, node)
    code, printed = finish(running)
    if node in cluster.worker_nodes:
        cluster.remove_node(node)
    add_host(cluster, *node.is_host)  # as it was
    assert code == 0, printed
    assert ("its node has died" in printed) == (leave is kill)
    lost = "was lost" if leave is kill else "ended with 130"
    assert f"process 1 (slice 0, worker 1, {node.node_ip_address}) {lost}" in printed
    assert "restart 1 of at most 20" in printed
    assert all(launches.file("saved", number).exists() for number in range(2))
    assert launches.host(0, attempt=1)[0] == launches.host(1, attempt=1)[0]
    assert launches.host(0, attempt=1)[0] != node.is_host[0]


def test_a_program_that_waits_for_slices_can_be_stopped(launches):
    running = launches.begin("--config=0,0,0,0,0,0", options=["--slices=3"])
    assert running.stdout.readline() == "ray_slices: waiting for 3 x 2x2x2\n"
    running.send_signal(signal.SIGTERM)
    assert finish(running) == (130, "")
    assert launches.training.calls() == []


def test_two_hosts_train_and_save_when_they_are_stopped(launches, tmp_path):
    """Training itself, on processes of one device each."""
    (tmp_path / ".venv/bin/python").write_text(
        f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} "$@"\n'
    )
    workdir = tmp_path / "run"
    running = launches.begin(
        *TINY, f"--workdir={workdir}", options=[f"--port={free_port()}", "--restarts=0"]
    )
    interrupt(running, workdir, signal.SIGTERM, step=1)
    code, printed = finish(running)
    assert code == 130, printed
    assert "the same command continues from the last checkpoint" in printed
    assert "process 1 (slice 0, worker 1" in printed and "ended with 130" in printed
    assert max(workdir.glob("checkpoints/step_*/manifest.json")).parent.name >= "step_00000001"


def test_a_cluster_that_does_not_answer_is_one_line(launches):
    launches.cluster = type("", (), {"address": f"127.0.0.1:{free_port()}"})
    code, printed = launches.run("--config=0,0")
    assert code == 1 and "cannot join the cluster at --address=127.0.0.1:" in printed
    assert "Traceback" not in printed
