"""A mesh over the devices of two processes, as on two hosts."""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from tests.learn.one_of_two import losses
from tests.quick_compile import QUICK_COMPILE

pytestmark = pytest.mark.heavy

TIME_S = 300


def test_two_processes_of_four_devices_train_as_one_of_eight(tmp_path, pytestconfig):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count=4 {QUICK_COMPILE}",
    }
    files = [tmp_path / str(number) for number in range(2)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.learn.one_of_two", address, str(number), str(file)],
            env=environment,
            cwd=pytestconfig.rootpath,
        )
        for number, file in enumerate(files)
    ]
    try:
        assert [process.wait(TIME_S) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    expected = losses()
    for file in files:
        np.testing.assert_allclose(json.loads(file.read_text()), expected, rtol=1e-5)
