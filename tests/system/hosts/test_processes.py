"""Several processes with two devices each train as one process with all of them."""

import json
import os
import socket
import subprocess
import sys

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from tests.quick_compile import QUICK_COMPILE

pytestmark = pytest.mark.slow

TIME_S = 800
STEPS = 3
# Attention credit and a divergence from the reference; one that is only measured, critics, values,
# masks, an engine on each of the devices that do not learn, half of them, and replies that are held
# to a schema.
ALGORITHMS = ("grpo", "asyppo")


def free_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def play(folder, count, devices, root):
    """Plays the algorithms on `count` processes of `devices` devices each."""
    address = free_address()
    flags = f"--xla_force_host_platform_device_count={devices} {QUICK_COMPILE}"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    words = (str(folder), str(STEPS), *ALGORITHMS)
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.system.hosts.play", address, str(count), str(n), *words],
            env=environment,
            cwd=root,
        )
        for n in range(count)
    ]
    try:
        assert [process.wait(TIME_S) for process in processes] == [0] * count
    finally:
        for process in processes:
            process.kill()


def read_state(folder):
    """Of whatever processes wrote it, as numpy arrays."""
    reader = ocp.PyTreeCheckpointer()
    tree = reader.metadata(folder).item_metadata.tree
    as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
    return reader.restore(folder, restore_args=as_numpy)


@pytest.fixture(scope="module")
def played(tmp_path_factory, pytestconfig):
    """The folders of one process and of two."""
    folders = [tmp_path_factory.mktemp(name) for name in ("one", "two")]
    for folder, (count, devices) in zip(folders, ((1, 4), (2, 2)), strict=True):
        play(folder, count, devices, pytestconfig.rootpath)
    return folders


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_two_processes_train_as_one(played, algorithm):
    one, two = (json.loads((f / algorithm / "metrics.json").read_text()) for f in played)
    assert len(one) == STEPS and any("loss" in line for line in one), "nothing was learned"
    for line, other in zip(one, two, strict=True):
        assert line.keys() == other.keys() and line["tokens_crc32"] == other["tokens_crc32"]
        for name, value in line.items():
            if not isinstance(value, dict):
                np.testing.assert_allclose(other[name], value, rtol=1e-5, atol=1e-7, err_msg=name)
    states = [read_state(f / algorithm / "state") for f in played]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), *states)
