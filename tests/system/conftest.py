"""Ray, started once for the module that asks for it, and the sandbox runtimes of this machine."""

import fcntl
import os
import shutil

import pytest
from ray.cluster_utils import Cluster

from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.system.actors.cluster import OBJECT_STORE_BYTES, ray_cluster
from tests.runtimes import PROBES, play_on
from tests.system.whole_runs import LEARNING, run

SPEC = SandboxSpec(memory_mb=128, pids=48, files_mb=8, command_seconds=5.0)
NODE = {"num_cpus": 1, "object_store_memory": OBJECT_STORE_BYTES}


def pytest_generate_tests(metafunc):
    if "each_runtime" in metafunc.fixturenames:
        play_on(metafunc, "each_runtime", both=True)


@pytest.fixture(scope="module")
def ray():
    with ray_cluster(actors=2):
        yield


@pytest.fixture(scope="module")
def cluster():
    """Of Ray, with a head that holds sandboxes, to which nodes can be added. Nobody has joined."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cluster = Cluster(initialize_head=True, head_node_args=NODE | {"include_dashboard": False})
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="session")
def runtime_name():
    try:
        return pick_runtime("auto", SPEC).name
    except SandboxStartError as error:
        pytest.skip(f"needs a sandbox runtime: {error}")


@pytest.fixture(scope="session")
def each_runtime(request):
    if reason := PROBES[request.param](SPEC):
        pytest.skip(f"{request.param}: {reason}")
    return request.param


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory, runtime_name):
    """The folder of a run that nothing interrupted, for tests that leave it as it is, and what it
    printed. The processes that the tests are divided among share it: the first that asks makes it.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    workdir, printed = folder / "unbroken", folder / "unbroken.txt"
    with (folder / "unbroken.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not printed.exists():
            shutil.rmtree(workdir, ignore_errors=True)  # of a process that failed
            printed.write_text(run(workdir, runtime_name, *LEARNING))
    return workdir, printed.read_text()
