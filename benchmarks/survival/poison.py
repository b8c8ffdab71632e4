"""In a rollout worker: lets the code of countdown's world fail for one task of thirteen."""

import os
from pathlib import Path

from ale_jax.envs.countdown.env import CountdownEnv
from benchmarks.survival.processes import MARK

TASKS = 13

_reset = CountdownEnv.reset


def _poisoned(env, seed):
    if seed % TASKS == 0:
        Path(os.environ[MARK]).touch()
        raise KeyError(f"injected: task {seed} has no answer")
    return _reset(env, seed)


CountdownEnv.reset = _poisoned
