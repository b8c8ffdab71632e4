"""In a rollout worker: lets each step of a shell world take longer, as if its commands waited."""

import random
import time

from ale_jax.envs.shell.env import ShellEnv

# A step of 10 s on average, N(10, 10), a hundred times faster.
MEAN_S, DEVIATION_S = 0.1, 0.1

_step = ShellEnv.step


def _waiting(env, action):
    time.sleep(max(0.0, random.gauss(MEAN_S, DEVIATION_S)))
    return _step(env, action)


ShellEnv.step = _waiting
