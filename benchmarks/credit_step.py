"""Shared by the benchmarks of credit: two policies, a step of packed trajectories, and timing."""

from __future__ import annotations

import dataclasses
import importlib
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from ale_jax.algo.losses import count_loss_denominator
from ale_jax.config.architecture import PolicyShape
from ale_jax.config.learn import Shape
from ale_jax.config.model import ModelConfig
from ale_jax.config.optimizer import OptimizerHypers
from ale_jax.config.run import RunConfig
from ale_jax.data.packing import Sample, pack_all
from ale_jax.learn.state import init_state, make_optimizer
from ale_jax.learn.step import ModelSpec, make_loss, make_train_step
from ale_jax.records import Batch, Turn
from ale_jax.system.checks import checked_config

QUICKSTART_VOCABULARY = 736
TURNS, PROMPT_SHARE = 4, 0.4  # turns of a trajectory, and the share of each that is its prompt
ADAMW = OptimizerHypers("adamw", 1e-4, 1e-4, b1=0.9, b2=0.95, weight_decay=0.0, clip_norm=1.0)


@dataclasses.dataclass(frozen=True)
class Work:
    """A policy, the shape of its microbatches, and the trajectories of a step.

    tokens: approximate length of a trajectory. mini: sizes of a mini critic for this policy, by the
    fields of `CriticsHypers`.
    """

    name: str
    policy: PolicyShape
    shape: Shape
    trajectories: int
    tokens: int
    mini: Mapping[str, int]


def works(quick: bool) -> list[Work]:
    """The quickstart's policy and rows and, unless `quick`, a larger policy."""
    config = _quickstart()
    policy = config.model.policy_shape(QUICKSTART_VOCABULARY)
    first = Work(
        "quickstart",
        policy,
        config.learn,
        trajectories=32,
        tokens=200,
        mini=_sizes(width=64, layers=2, heads=2, kv_heads=1, mlp=192),
    )
    dense = {"num_experts": 0, "dense_layers": ()}
    sizes = {"width": 256, "num_layers": 12, "num_heads": 8, "mlp_width": 768}
    larger = dataclasses.replace(ModelConfig.of(policy), **sizes, **dense).policy_shape(2048)
    mini = _sizes(width=128, layers=4, heads=4, kv_heads=2, mlp=384)
    second = Work(
        "twelve layers", larger, Shape(2, 1024, 32), trajectories=12, tokens=330, mini=mini
    )
    return [first] if quick else [first, second]


def _quickstart() -> RunConfig:
    module = importlib.import_module("ale_jax.configs.quickstart")
    return checked_config(module.get_config().to_dict())


def _sizes(width: int, layers: int, heads: int, kv_heads: int, mlp: int) -> dict[str, int]:
    return {
        "width": width,
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_width": 32,
        "mlp_width": mlp,
    }


def step_batches(work: Work, positive_share: float) -> list[Batch]:
    """Random trajectories, of which `positive_share` have positive advantages. Every second one has
    a reward."""
    draw = np.random.default_rng(0)
    positive = np.arange(work.trajectories) < round(positive_share * work.trajectories)
    samples = [
        _sample(draw, work, bool(good), member) for member, good in enumerate(positive.tolist())
    ]
    return pack_all(samples, work.shape)


def _sample(draw: np.random.Generator, work: Work, positive: bool, member: int) -> Sample:
    tokens = int(work.tokens * draw.uniform(0.7, 1.3)) // TURNS
    prompt = int(PROMPT_SHARE * tokens)

    def turn(number: int) -> Turn:
        ids = draw.integers(0, work.policy.vocab_size, tokens, dtype=np.int32)
        logp = np.full(tokens - prompt, -np.log(work.policy.vocab_size), np.float32)
        reward = float(member % 2) if number == TURNS - 1 else 0.0
        zeros = np.zeros(tokens - prompt, np.int32)
        return Turn(ids[:prompt], ids[prompt:], logp, logp, zeros, "", "", reward)

    turns = tuple(map(turn, range(TURNS)))
    advantage_C = np.full(TURNS, 1.0 if positive else -1.0, np.float32)
    return Sample(turns, advantage_C, member=member)


class Training:
    """The policy's training step, for comparison: forward and backward pass of the quickstart's
    loss, and an update of all weights."""

    def __init__(self, work: Work, mesh: Mesh):
        optimizer = make_optimizer(ADAMW, work.policy)
        self._algo = _quickstart().algo
        loss = make_loss(self._algo, work.shape.chunks_per_pack)
        self._step = make_train_step(
            ModelSpec(work.policy, mesh, balance_weight=1e-3), optimizer, loss
        )
        self.state = init_state(jax.random.key(0), work.policy, optimizer, mesh)

    def __call__(self, batches: list[Batch]) -> None:
        loss_denominator = count_loss_denominator(batches, self._algo.loss.aggregation)
        self.state, sums, _ = self._step(self.state, batches, loss_denominator)
        jax.block_until_ready((self.state, sums))


def timed(calls: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call in each round. In a round each is called once, so that other load on the
    machine affects all calls equally. An additional first round, which compiles, does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if number:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def spread(seconds: list[float]) -> dict[str, float]:
    return {
        "median_s": round(statistics.median(seconds), 4),
        "min_s": round(min(seconds), 4),
        "max_s": round(max(seconds), 4),
    }


def about(command: str) -> dict[str, Any]:
    """The command, hardware and versions of a result."""
    return {
        "command": command,
        "hardware": f"{os.cpu_count()} CPU cores, {platform.machine()}, no accelerator",
        "versions": {name: version(name) for name in ("jax", "jaxlib", "optax", "numpy")},
    }
