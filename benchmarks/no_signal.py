"""Does a policy move where there is nothing to learn?

    python -m benchmarks.no_signal [--quick] [--presets=ipa,grpo] [--low] [--plain]

A world shows whether luck is with an episode, and then tosses a coin that luck has biased, whatever
is written. So the expected update of the weights is 0 in every state, however the tokens are drawn,
if the learner's distribution is the one that they were drawn from. If it is another one, episodes
that tend to be rewarded pull the policy towards what sampling favours anyway, and the others push
it away.

For each preset of configs/algorithms.py and each way of sampling, batches are drawn by the engine's
sampler and scored, credited and differentiated by the trainer's functions. The drift is how fast
the mean update changes the entropy of the lucky states, in nats for a learning rate of 1, and its
error is over seeds. The weights themselves stay: entropy is concave, so that noisy steps lower it
even if their mean is 0. All presets see the same batches.

--low: failures count a tenth (`loss.negative_weight`), as in the quickstart. --plain scores the
tokens as a trainer does that ignores how they were drawn. --quick: four presets. The last line of
stdout is a JSON object. Exit code 1: a drift is beyond 3.5 errors, or all drifts of a preset have
one sign.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from ale_jax.algo.policy_loss import policy_loss
from ale_jax.config.engine import Sampling
from ale_jax.configs.algorithms import PRESETS
from ale_jax.model.guides import SamplingMasks
from ale_jax.model.policy import Asked, score_tokens
from ale_jax.model.sampler import SlotState, sample
from benchmarks.choices import some_of
from benchmarks.laboratory.credit import Arm, advantages, arm, lay_out
from benchmarks.laboratory.training import loss_denominator
from benchmarks.laboratory.world import Played, Size, regime

WAYS = {
    "temperature 0.5": Sampling(temperature=0.5),
    "temperature 0.7": Sampling(temperature=0.7),
    "temperature 1.3": Sampling(temperature=1.3),
    "top-p 0.8": Sampling(top_p=0.8),
    "top-k 20": Sampling(top_k=20),
}
QUICK = ("ipa", "grpo", "reinforce", "asyppo")
SEEDS, BATCHES = 64, 32  # batches of each seed
BAR = 3.5  # errors
LUCKY, UNLUCKY = 0.8, 0.2  # probabilities of a reward

SIZE = Size(tasks=1, stages=2, turns=2, tokens=3, words=40)
GROUPS, MEMBERS = 2, 8
N, T = GROUPS * MEMBERS, SIZE.turns * SIZE.tokens  # episodes of a batch; tokens of an episode


def main(arguments: list[str]) -> int:
    """Returns the exit code: 1 if something drifts."""
    parser = argparse.ArgumentParser("benchmarks.no_signal", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--presets", type=some_of(PRESETS), help="default: all")
    parser.add_argument("--low", action="store_true", help="failures count a tenth")
    parser.add_argument("--plain", action="store_true", help="ignore how tokens were drawn")
    options = parser.parse_args(arguments)
    names = options.presets or (QUICK if options.quick else PRESETS)
    presets = {name: arm(name) for name in names}
    if options.low:
        presets = {name: lowered(preset) for name, preset in presets.items()}
    began = time.monotonic()
    found = drifts(presets, options.plain)
    _show(found)
    result = summary(found) | {"seconds": round(time.monotonic() - began, 1)}
    print(json.dumps(result))
    return int(result["worst_z"] > BAR or bool(result["one_sign"]))


def lowered(preset: Arm) -> Arm:
    """Returns the preset with failures at a tenth of their weight, unless it weighs them itself."""
    if preset.algo.advantage.balance != "none":
        return preset
    loss = dataclasses.replace(preset.algo.loss, negative_weight=0.1)
    return dataclasses.replace(preset, algo=dataclasses.replace(preset.algo, loss=loss))


def summary(found: Mapping[str, Mapping[str, Drift]]) -> dict[str, Any]:
    """Returns the drifts as JSON; worst_z: the largest in errors; one_sign: presets all of whose
    drifts have one."""
    cells = [
        {"preset": name, "sampling": way, "drift": each.mean, "error": each.error, "z": each.z}
        for name, ways in found.items()
        for way, each in ways.items()
    ]
    signs = {name: {each.mean > 0 for each in ways.values()} for name, ways in found.items()}
    return {
        "presets": list(found),
        "cells": cells,
        "worst_z": max(abs(cell["z"]) for cell in cells),
        "one_sign": [name for name, its in signs.items() if len(its) == 1],
    }


def _show(found: Mapping[str, Mapping[str, Drift]]) -> None:
    table = Table("preset", *WAYS, title="drift of entropy, in standard errors")
    for name, ways in found.items():
        table.add_row(name, *(f"{each.z:+.1f}" for each in ways.values()))
    Console().print(table)


class Drift(NamedTuple):
    """mean: nats of entropy for a learning rate of 1. error: of the mean."""

    mean: float
    error: float

    @property
    def z(self) -> float:
        return self.mean / self.error


class Scores(NamedTuple):
    """As `TokenScores`."""

    logp_NT: jax.Array
    entropy_NT: jax.Array


class Batch(NamedTuple):
    """One batch as it was drawn, its scores, and how they change if the weights move along the
    gradient of the lucky states' entropy."""

    token_NT: jax.Array
    logp_mu_NT: jax.Array
    outcome_N: jax.Array
    scores: Scores
    rise: Scores


def drifts(
    presets: Mapping[str, Arm], plain: bool = False, seeds: int = SEEDS
) -> dict[str, dict[str, Drift]]:
    """Returns the drifts of each preset, by the way of sampling. plain: as in the module."""
    found: dict[str, dict[str, Drift]] = {name: {} for name in presets}
    for way, sampling in WAYS.items():
        batches = _drawn(_slots(sampling), jnp.float32(sampling.temperature), seeds, plain)
        for name, preset in presets.items():
            drift_S = np.asarray(_drift(batches, preset, plain))
            error = float(drift_S.std(ddof=1) / math.sqrt(seeds))
            found[name][way] = Drift(float(drift_S.mean()), error)
    return found


def policy() -> jax.Array:
    """Logits of the words at each place of unlucky and of lucky episodes, float32 [2, T, V]."""
    return 1.5 * jax.random.normal(jax.random.key(0), (2, T, SIZE.words))


def _slots(sampling: Sampling) -> SlotState:
    """The sampler's slots, one for each token of a batch, without their keys."""
    zeros = jnp.zeros(N * T, jnp.int32)
    return SlotState(
        *(zeros, zeros, zeros, jnp.zeros((N * T, 2), jnp.uint32)),
        *(
            jnp.full(N * T, getattr(sampling, x))
            for x in ("temperature", "top_k", "top_p", "min_p")
        ),
        continues_S=zeros > 0,
    )


@functools.partial(jax.jit, static_argnames=("seeds", "plain"))
def _drawn(slots: SlotState, temperature: jax.Array, seeds: int, plain: bool) -> Batch:
    """The batches of all seeds, in arrays [seeds, BATCHES, ...]."""

    def one(key: jax.Array) -> Batch:
        draw_key, luck_key, coin_key = jax.random.split(key, 3)
        lucky_N = jax.random.bernoulli(luck_key, shape=(N,))
        outcome_N = jax.random.bernoulli(coin_key, jnp.where(lucky_N, LUCKY, UNLUCKY))
        keys_S2 = jax.random.bits(draw_key, (N * T, 2), jnp.uint32)
        logits_SV = policy()[lucky_N.astype(jnp.int32)].reshape(N * T, -1)
        drawn = sample(logits_SV, slots.replace(key_S2=keys_S2), record_left=True)
        assert drawn.left_Sw is not None, "it is recorded"
        of_slots = (drawn.token_S, drawn.logp_mu_S, drawn.left_Sw)
        token_NT, logp_mu_NT, left_NTw = (x.reshape(N, T, *x.shape[1:]) for x in of_slots)
        how = (None, None) if plain else (left_NTw, temperature)
        scores, backward = jax.vjp(
            lambda logits: _scores(logits, token_NT, lucky_N, *how), policy()
        )
        # The transpose of the backward pass, as products of the trainer have no forward rule.
        forward = jax.linear_transpose(lambda slopes: backward(slopes)[0], scores)
        (rise,) = forward(jax.grad(_lucky_entropy)(policy()))
        return Batch(token_NT, logp_mu_NT, outcome_N, scores, rise)

    return jax.vmap(jax.vmap(one))(jax.random.split(jax.random.key(1), (seeds, BATCHES)))


def _scores(
    logits_2TV: jax.Array,
    token_NT: jax.Array,
    lucky_N: jax.Array,
    left_NTw: jax.Array | None,
    temperature: jax.Array | None,
) -> Scores:
    """Scores each episode as a row behind a token that nobody wrote. The head is the table of all
    logits, and a hidden state says which row of it counts."""
    written_BT = jnp.pad(token_NT, ((0, 0), (1, 0)))
    place_BT = jnp.broadcast_to(jnp.arange(T + 1)[None], written_BT.shape)
    hidden_BTD = jax.nn.one_hot(T * lucky_N[:, None] + place_BT, 2 * T)
    head = {"head_DV": logits_2TV.reshape(2 * T, -1)}
    masks = None if left_NTw is None else SamplingMasks(place_BT - 1, left_NTw)  # FREE at first
    temperature_BT = None if temperature is None else jnp.full(written_BT.shape, temperature)
    asked = Asked(masks, temperature_BT)
    scores = score_tokens(head, written_BT, hidden_BTD, place_BT, asked)
    return Scores(scores.logp_BT[:, 1:], scores.entropy_BT[:, 1:])


@functools.partial(jax.jit, static_argnames=("preset", "plain"))
def _drift(batches: Batch, preset: Arm, plain: bool) -> jax.Array:
    """How fast the mean update of each seed changes the lucky states' entropy, [seeds]."""

    def one(batch: Batch) -> jax.Array:
        loss = functools.partial(_loss, batch=batch, preset=preset, plain=plain)
        slopes = jax.grad(loss)(batch.scores)
        return -sum((slope_NT * rise_NT).sum() for slope_NT, rise_NT in zip(slopes, batch.rise))

    return jax.vmap(jax.vmap(one))(batches).mean(axis=1)


def _loss(scores: Scores, batch: Batch, preset: Arm, plain: bool) -> jax.Array:
    """The trainer's. batch: whose scores are those before the update."""
    algo, played, world = preset.algo, _played(batch), regime(SIZE)
    rows = lay_out(played, MEMBERS, world, SIZE)
    # Critics may say anything, but not what they cannot know: which token follows.
    value_QNC = jax.random.normal(jax.random.key(2), (preset.count, N, SIZE.turns))
    value_QNT = jnp.repeat(value_QNC, SIZE.tokens, axis=2)
    advantage_NT, entropy_NT = advantages(played, rows, value_QNT, preset, world, GROUPS)
    is_recorded = algo.old_logp == "sampler" and not plain
    arrays = {
        "chunk_BT": rows.chunk_NT,
        "segment_BT": rows.segment_NT,
        "advantage_BT": advantage_NT,
        "entropy_BT": entropy_NT,
        "imitate_BT": jnp.zeros((N, T)),
        "logp_mu_BT": batch.logp_mu_NT,
        "logp_old_BT": batch.logp_mu_NT if is_recorded else batch.scores.logp_NT,
        "logp_prox_BT": batch.scores.logp_NT,
    }
    about = loss_denominator(arrays, algo.loss), SIZE.turns, algo.loss, algo.mismatch
    return policy_loss(*scores, arrays, *about)[0]


def _lucky_entropy(logits_2TV: jax.Array) -> jax.Array:
    logp_TV = jax.nn.log_softmax(logits_2TV[1])
    return -(jnp.exp(logp_TV) * logp_TV).sum(-1).mean()


def _played(batch: Batch) -> Played:
    """One task, whose stages follow one another whatever is written."""
    always_NC = jnp.ones((N, SIZE.turns), bool)
    return Played(
        task_N=jnp.zeros(N, jnp.int32),
        outcome_N=batch.outcome_N.astype(jnp.float32),
        stage_NC=jnp.broadcast_to(jnp.arange(SIZE.turns)[None], always_NC.shape),
        tokens_NCL=batch.token_NT.reshape(N, SIZE.turns, SIZE.tokens),
        live_NC=always_NC,
        lost_NC=~always_NC,
        right_NC=always_NC,
        logits_MDLV=policy().reshape(1, -1, SIZE.tokens, SIZE.words),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
