"""Folders that use every field, played in real sandboxes: the solution earns 1, and nothing 0."""

from pathlib import Path

import pytest

from ale_jax import examples
from ale_jax.sandbox.egress.policy import EgressPolicy
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.worlds.bridges.harbor.world import Harbor
from tests.worlds.bridges.harbor.folders import PAYS, PLAYED, write

RUN = SandboxSpec(network=EgressPolicy("open"))


def played(world, item, box, replies):
    """The last step of some replies; what is left of them after the end is not played."""
    world.reset(item, box)
    for reply in replies:
        step = world.step(reply)
        if step.done:
            return step
    raise AssertionError(f"the episode has not ended: {step}")


@pytest.mark.heavy
@pytest.mark.parametrize("name", PLAYED)
def test_the_solution_earns_1_and_doing_nothing_0(runtime, tmp_path, name):
    write(tmp_path / "tasks" / "one", PLAYED[name])
    world = Harbor(str(tmp_path / "tasks"), eval_share=0.0)
    item = world.families["tasks"].find("tasks", "one", "train")
    spec = world.sandbox(item, RUN if name == "hosts" else SandboxSpec())
    with runtime.start(spec, {"role": "test"}) as box:
        assert played(world, item, box, world.oracle(item)).reward == PAYS.get(name, 1.0)
        nothing = played(world, item, box, [world.nothing] * 3)
        paid = nothing.reward if name in PAYS else {"reward": nothing.reward}
        assert set(paid.values()) == {0.0}


EXAMPLES = Path(examples.__path__[0]) / "harbor"


@pytest.mark.heavy
@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.iterdir()))
def test_the_examples_are_sound(runtime, name):
    world = Harbor(str(EXAMPLES), eval_share=0.0)
    item = world.families["harbor"].find("harbor", name, "train")
    with runtime.start(world.sandbox(item, SandboxSpec()), {"role": "test"}) as box:
        assert played(world, item, box, world.oracle(item)).reward == 1.0
        assert played(world, item, box, [world.nothing]).reward == 0.0
