"""Worlds with one fault each."""

import itertools

from ale_jax.worlds.api import Step, VerifierError, World
from ale_jax.worlds.items import Seeds

CALLS = itertools.count()  # of all worlds, which must not depend on it


class Sound(World):
    """Wants the item's number."""

    families = dict.fromkeys(("numbers",), Seeds())

    def oracle(self, item):
        return ("look", str(item.seed))

    def reset(self, item, sandbox):
        self._seed = item.seed
        return f"say {item.seed}"

    def step(self, reply):
        return Step("go on") if reply == "look" else Step(reward=self.paid(reply), done=True)

    def paid(self, reply):
        return float(reply == str(self._seed))


class Free(Sound):
    def paid(self, reply):
        return 1.0


class Hopeless(Sound):
    def paid(self, reply):
        return 0.25


class Flaky(Sound):
    def paid(self, reply):
        return super().paid(reply) * next(CALLS)


class Changing(Sound):
    def reset(self, item, sandbox):
        super().reset(item, sandbox)
        return f"call {next(CALLS)}: say {item.seed}"


class Unjudged(Sound):
    def paid(self, reply):
        raise VerifierError("the judge\nis \x1b[31mdown")


class Broken(Sound):
    def step(self, reply):
        return {}["x"]


class NoOracle(Sound):
    oracle = World.oracle
