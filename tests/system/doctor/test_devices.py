"""Devices and memory, of this machine and of others by their names."""

import pytest

from ale_jax.system.doctor import devices
from ale_jax.system.doctor.devices import (
    GROUPS,
    check_mesh,
    check_sum,
    grouped_product_cost,
    is_chip,
    judge_cost,
)
from ale_jax.system.doctor.findings import State
from ale_jax.system.doctor.machine import HostNeeds, check_host_memory, host_needs
from ale_jax.system.plan import GIB
from tests.system.configs import smoke_config

POD = {"hardware": {"chip": "v6e", "devices": 64}, "mesh": {"expert": 8, "tensor": 4}}


def test_the_devices_of_a_pod_are_not_here():
    finding = check_mesh(smoke_config(**POD), "cpu", 8)
    assert finding.state is State.FAIL
    assert finding.found == "8 x cpu, and the config is for 64 x v6e"
    assert "needs a multiple of 32 devices, there are 8" in finding.remedy


@pytest.mark.parametrize(
    ("kind", "count", "state"),
    [
        ("TPU v6 lite", 64, State.OK),
        ("TPU v6 lite", 128, State.WARN),  # the rows of a batch can be divided further
        ("TPU v5", 64, State.WARN),
        ("TPU v6 lite", 48, State.FAIL),
    ],
)
def test_other_devices_are_a_warning_where_the_mesh_fits_on_them(kind, count, state):
    assert check_mesh(smoke_config(**POD), kind, count).state is state


def test_engines_with_devices_for_themselves_leave_the_others_to_the_mesh():
    config = smoke_config(rollout={"engine_devices": 2}, mesh={"data": 6})
    assert check_mesh(config, "cpu", 8).state is State.OK
    finding = check_mesh(config, "cpu", 2)
    assert finding.state is State.FAIL and "engine_devices 2 leaves none" in finding.remedy


def test_a_kind_of_device_is_no_kind_that_its_name_begins_with():
    assert is_chip("TPU v5", "v5p") and not is_chip("TPU v5 lite", "v5p")
    assert is_chip("TPU v5 lite", "v5e") and not is_chip("TPU v5", "v5e")
    assert is_chip("TPU7x", "tpu7x")
    assert is_chip("NVIDIA H100 80GB HBM3", "h100") and not is_chip("NVIDIA H100 PCIe", "h200")


def test_a_dense_product_is_a_failure_on_tpus_only():
    assert judge_cost("tpu", 1.0).state is State.OK
    dense = judge_cost("tpu", float(GROUPS))
    assert dense.state is State.FAIL and "8.00 times" in dense.found and "pair" in dense.remedy
    assert judge_cost("cpu", float(GROUPS)).state is State.OK
    assert "does not count" in judge_cost("gpu", 0.0).found


def test_the_cpus_compiler_multiplies_with_every_group():
    assert grouped_product_cost() == pytest.approx(GROUPS, rel=0.1)


def test_the_devices_of_this_machine_add_up():
    finding = check_sum()
    assert (finding.state, finding.found) == (State.OK, "36 over 8 devices")


def test_a_sum_that_one_device_gets_wrong_is_a_failure(monkeypatch):
    monkeypatch.setattr(devices, "_sum", lambda: [36, 36, 35, 36])
    finding = check_sum()
    assert finding.state is State.FAIL
    assert finding.found == "35, 36 over 8 devices" and finding.remedy.startswith("36 is right")


def test_every_device_says_what_it_gets():
    assert devices._sum() == [36] * 8


def test_the_machine_must_hold_what_its_devices_cannot():
    needs = host_needs(smoke_config(), leads=True)
    assert needs.arrays > 0 and needs.checkpoint > 0
    assert needs.sandboxes == 4 * (256 << 20)  # one actor with four episodes
    assert host_needs(smoke_config(), leads=False).sandboxes == 0
    for runtime in ("http://localhost:8700", "kubernetes"):  # other machines have them
        elsewhere = smoke_config(rollout={"runtime": runtime})
        assert host_needs(elsewhere, leads=True).sandboxes == 0


@pytest.mark.parametrize(
    ("usable", "state"), [(5 * GIB, State.OK), (3 * GIB, State.WARN), (GIB, State.FAIL)]
)
def test_sandboxes_at_their_limits_are_a_warning_and_arrays_a_failure(usable, state):
    finding = check_host_memory(HostNeeds(GIB, GIB // 2, 0, 3 * GIB), usable)
    assert finding.state is state and "1.50" in finding.found
