"""In a rollout worker: lets the code of countdown's world fail for one task of thirteen."""

import os
from pathlib import Path

from ale_jax.envs.countdown.env import Countdown
from benchmarks.survival.processes import MARK

TASKS = 13

_reset = Countdown.reset


def _poisoned(world, item, sandbox):
    if item.seed % TASKS == 0:
        Path(os.environ[MARK]).touch()
        raise KeyError(f"injected: task {item.seed} has no answer")
    return _reset(world, item, sandbox)


Countdown.reset = _poisoned
