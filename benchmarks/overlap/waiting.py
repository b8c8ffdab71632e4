"""In a rollout worker: lets each step of a shell world take longer, as if its commands waited."""

import random
import time

from ale_jax.envs.shell.env import Shell

# A step of 10 s on average, N(10, 10), a hundred times faster.
MEAN_S, DEVIATION_S = 0.1, 0.1

_step = Shell.step


def _waiting(world, reply):
    time.sleep(max(0.0, random.gauss(MEAN_S, DEVIATION_S)))
    return _step(world, reply)


Shell.step = _waiting
