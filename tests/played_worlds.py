"""Our worlds as tests play them: by the names of their families, and with gem's tuples."""

import functools

from ale_jax.agent import transcripts
from ale_jax.config.worlds import Domain
from ale_jax.envs.countdown.puzzle import FAMILIES
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.worlds.families import PlayableFamilies, open_families
from ale_jax.worlds.gym import AsGem

COUNTDOWN = ({"world": "countdown", "families": ("countdown3",)},)


def named(world, *families):
    """Families as a config names them."""
    return ({"world": world, "families": families},)


def shell(*families):
    return named("shell", *families)


@functools.cache
def family_of(name):
    """A family of one of our worlds."""
    world = "corridor" if name.startswith("corridor") else "shell"
    world = "countdown" if name in FAMILIES else world
    return open_families((Domain(world, (name,)),))[name]


class OurWorlds(PlayableFamilies):
    """All families of our worlds, whatever a config names."""

    def __init__(self):
        super().__init__(self, SandboxSpec())

    def __getitem__(self, name):
        return family_of(name)


class Played(AsGem):
    """A family as gem plays it, with the verdict on a state."""

    def __init__(self, name, sandbox=None):
        super().__init__(family_of(name), sandbox)

    def grade(self):
        return self._world.grade()


def demonstration(sandbox, task, noisy=False):
    return transcripts.demonstration(family_of(task.family), sandbox, task, noisy)


def play_oracle(sandbox, task, noisy=False):
    return transcripts.play_oracle(family_of(task.family), sandbox, task, noisy)
