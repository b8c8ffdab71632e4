"""One task folder in a sandbox, for tests."""

import contextlib

from ale_jax.agent.tools import bash, finish, render_tool_call
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.worlds.bridges.harbor.world import Harbor
from tests.worlds.bridges.harbor.folders import write

FINISH = render_tool_call(finish())


def run(command: str) -> str:
    """The reply that runs a command."""
    return render_tool_call(bash(command))


def world_of(folder, changes, **options):
    """The world of one task, and its item."""
    write(folder / "tasks" / "one", changes)
    world = Harbor(str(folder / "tasks"), eval_share=0.0, **options)
    return world, world.families["tasks"].find("tasks", "one", "train")


@contextlib.contextmanager
def begun(runtime, folder, changes, **options):
    """A world after its reset, and its sandbox."""
    world, item = world_of(folder, changes, **options)
    with runtime.start(world.sandbox(item, SandboxSpec()), {"role": "test"}) as box:
        world.reset(item, box)
        yield world, box


def played(world, *replies):
    """The step after the last of some replies."""
    return [world.step(reply) for reply in replies][-1]
