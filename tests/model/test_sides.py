"""Which devices learn, and which sample."""

import dataclasses

import jax
import pytest

from ale_jax.config.hardware import HardwareConfig, MeshShape
from ale_jax.config.rollout import RolloutConfig
from ale_jax.config.run import RunConfig
from ale_jax.model.sharding import make_mesh
from ale_jax.model.sides import learner_mesh, num_learners


def _config(engine_devices, hardware=HardwareConfig(), **mesh):  # noqa: B008 (it has no state)
    return dataclasses.replace(
        RunConfig(),
        hardware=hardware,
        mesh=MeshShape(**mesh),
        rollout=RolloutConfig(engine_devices=engine_devices),
    )


@pytest.mark.parametrize(("engine_devices", "learning"), [(0, 8), (2, 6), (7, 1)])
def test_the_learner_has_the_devices_that_engines_leave(engine_devices, learning):
    config = _config(engine_devices)
    mesh = learner_mesh(config)
    assert list(mesh.devices.flat) == jax.devices()[:learning]
    assert (mesh.shape["data"], num_learners(config)) == (learning, learning)


def test_each_process_keeps_some_for_its_engines():
    hardware = HardwareConfig("h100", 16, 4)
    assert num_learners(_config(1, hardware)) == 12
    assert num_learners(_config(0, hardware)) == 16


def test_parts_of_several_hosts_of_tpus_are_refused():
    """As the compiler refuses their programs."""
    with pytest.raises(ValueError, match="engine_devices 1 with 4 processes: the compiler refuses"):
        num_learners(_config(1, HardwareConfig("v5e", 16, 4)))
    assert num_learners(_config(1, HardwareConfig("v5e", 8))) == 7


@dataclasses.dataclass(frozen=True)
class Chip:
    """Of a TPU v5e of 2 x 4 chips, as jax describes it."""

    id: int
    platform: str = "tpu"
    device_kind: str = "TPU v5 lite"
    process_index: int = 0
    core_on_chip: int = 0

    @property
    def coords(self):
        return self.id % 2, self.id // 2, 0


@pytest.mark.parametrize("count", [4, 6, 7])
def test_tpus_need_not_fill_a_box(count):
    """Seven do not, and keep their order."""
    chips = [*map(Chip, range(count))]
    devices = [*make_mesh(MeshShape(), chips).devices.flat]
    assert sorted(devices, key=lambda chip: chip.id) == chips
    assert (devices == chips) == (count == 7), "a box is ordered by its links"


@pytest.mark.parametrize("of_engines", [8, 9])
def test_a_learner_without_devices_is_refused(of_engines):
    for ask in (learner_mesh, num_learners):
        with pytest.raises(ValueError, match=f"engine_devices {of_engines} leaves none of .* 8"):
            ask(_config(of_engines))


def test_the_mesh_is_of_the_learners_devices():
    with pytest.raises(ValueError, match=r"needs 8 devices, there are 6: set mesh\.data"):
        learner_mesh(_config(2, data=8))
