"""How much faster a run is on eight times the devices: with eight engines, in as many processes or
in one, which dispatches for all of them.

What a dispatch costs the process is measured: the CPU time of the thread of a real engine, with the
sizes and the 96 conversations of configs/smollm2_135m.py, but so small a policy that devices do not
matter. Between two dispatches of that config on an H100 there are ON_DEVICE_MS. Everything else is
simulated, as if episodes did nothing but sample.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time

import jax
import jax.numpy as jnp

from ale_jax.configs import smoke, smollm2_135m
from ale_jax.engine.engine import Engine
from ale_jax.model.params import init_params
from ale_jax.model.weights.shape import policy_shape
from ale_jax.system.checks import checked_config
from ale_jax.system.simulation.engines import Engines
from ale_jax.system.simulation.run import Setup, simulate
from ale_jax.system.simulation.world import Crowding
from benchmarks.asynchrony.workloads import UPDATE_SHARE, agentic, course_of
from benchmarks.engine_threads import measure as play
from benchmarks.weight_swap import NO_STOP

ON_DEVICE_MS = 46.0  # between dispatches of this engine on an H100 (benchmarks.engine_threads)
ENGINES, PLACES = 8, 16  # of an engine
SETUP = Setup(16, 8, PLACES, 0.0, alpha=2.0)
BEGIN = 5  # steps that do not count
DISPATCHES, QUICK_SLOTS = 30, 4
MOST = 0.99  # a share that a simulation can have


def measure(is_quick: bool) -> dict[str, float]:
    """Returns dispatch_cpu_ms, scaling_8_sim and scaling_8_one_process_sim."""
    steps, seeds = (10, 1) if is_quick else (60, 3)
    milliseconds = dispatch_cpu_ms(QUICK_SLOTS if is_quick else None)
    share = min(milliseconds / ON_DEVICE_MS, MOST)
    apart, together = Engines(ENGINES, ENGINES, share), Engines(ENGINES, dispatch=share)
    return {
        "dispatch_cpu_ms": round(milliseconds, 2),
        "scaling_8_sim": _median(apart, steps, seeds),
        "scaling_8_one_process_sim": _median(together, steps, seeds),
    }


def _median(engines: Engines, steps: int, seeds: int) -> float:
    return round(statistics.median(gain(engines, steps, seed) for seed in range(seeds)), 3)


def gain(engines: Engines, steps: int, seed: int) -> float:
    """Returns the seconds of a step with one engine over those with several, as many times the
    places, and a learner that is as many times faster."""
    course = course_of(agentic)
    rollout = simulate(dataclasses.replace(SETUP, alpha=0.0), course, steps, seed).seconds_per_step
    one = dataclasses.replace(SETUP, update_seconds=UPDATE_SHARE * rollout)
    more = dataclasses.replace(
        one,
        places=engines.number * PLACES,
        update_seconds=one.update_seconds / engines.number,
        crowding=Crowding(engines=engines),
    )
    seconds = [simulate(each, course, steps, seed, BEGIN).seconds_per_step for each in (one, more)]
    return seconds[0] / seconds[1]


def dispatch_cpu_ms(slots: int | None = None) -> float:
    """Returns the CPU milliseconds of an engine's thread per dispatch. slots: None for those of the
    config."""
    shape = checked_config(smollm2_135m.get_config().to_dict()).engine
    shape = dataclasses.replace(shape, max_sequences=slots or shape.max_sequences)
    config = checked_config(smoke.get_config().to_dict())
    policy = policy_shape(config, config.tokenizer.vocab_size)
    params = init_params(jax.random.key(0), policy, jnp.float32)
    used: list[float] = []  # CPU seconds of the engine's thread, after each dispatch
    with contextlib.closing(Engine(policy, shape, NO_STOP, params)) as engine:
        engine.observe(lambda start, end: used.append(time.thread_time()))
        play(engine, shape.max_sequences, DISPATCHES)
    counted = used[-DISPATCHES:]
    return 1e3 * (counted[-1] - counted[0]) / (len(counted) - 1)
