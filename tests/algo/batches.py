"""Arrays of small packed batches, for the tests of losses."""

import dataclasses
import itertools
import math

import jax
import numpy as np

from ale_jax.algo.policy_loss import policy_loss
from ale_jax.config.algo import MismatchHypers
from ale_jax.config.loss import AGGREGATIONS, LEVELS, LossHypers

LN2 = math.log(2.0)
IPA = LossHypers("topr", "chunk", ratio_cap=1.0)
IPA_MASK = MismatchHypers(filter_level="chunk", filter_high=1.2)
OFF = MismatchHypers()
# One of each kind, with bounds that act in `random_batch`.
EVERY_LOSS = {
    "vanilla": LossHypers("vanilla"),
    "ppo": LossHypers("ppo", clip_low=0.2, clip_high=0.3),
    "dual": LossHypers("ppo", clip_low=0.2, clip_high=0.3, dual_clip=1.4),
    "decoupled_ppo": LossHypers("decoupled_ppo", clip_low=0.2, clip_high=0.3, ratio_cap=1.1),
    "tis": LossHypers("tis", ratio_cap=1.0),
    "topr": LossHypers("topr", ratio_cap=1.0),
    "cispo": LossHypers("cispo", clip_low=0.2, clip_high=0.2),
    "kimi": LossHypers("kimi", tau=0.5),
    "sapo": LossHypers("sapo", tau=1.0, tau_negative=1.5),
}
# Every loss with a level in turn, and with an aggregation too: losses know of neither.
AT_LEVELS = {
    f"{name}/{level}": dataclasses.replace(hp, level=level)
    for (name, hp), level in zip(EVERY_LOSS.items(), itertools.cycle(LEVELS))
}
AGGREGATED = {
    f"{name}/{aggregation}": dataclasses.replace(
        hp, aggregation=aggregation, constant_tokens=50 * (aggregation == "constant")
    )
    for (name, hp), aggregation in zip(AT_LEVELS.items(), itertools.cycle(AGGREGATIONS))
}


def make_batch(chunk_BT, segment_BT, **arrays):
    """What is left out is 0; names that end in _BC are given per chunk."""
    chunk_BT = np.asarray(chunk_BT, np.int32)
    batch = {"chunk_BT": chunk_BT, "segment_BT": np.asarray(segment_BT, np.int32)}
    for name in ("logp_old", "logp_mu", "logp_prox", "logp_ref", "advantage", "imitate"):
        batch[f"{name}_BT"] = np.zeros(chunk_BT.shape, np.float32)
    for name, value in arrays.items():
        array = np.asarray(value)
        if name.endswith("_BC"):
            array = np.take_along_axis(array, np.maximum(chunk_BT, 0), axis=1)
            name, array = name[:-1] + "T", np.where(chunk_BT >= 0, array, 0)
        batch[name] = array.astype(np.float32)
    return batch


def random_batch(seed, rows=3, gap=0.3):
    """(logp_BT, entropy_BT, batch): two trajectories of two chunks in each row of 14 tokens."""
    rng = np.random.default_rng(seed)
    layout = [-1, 0, 0, 0, -1, 1, 1, -1, -1, 2, -1, 3, 3, -1]
    segment = [1] * 7 + [2] * 6 + [0]
    shape = rows, len(layout)
    logp_BT = -rng.exponential(1.0, shape)
    near = {}
    for name, to in (("old", logp_BT), ("mu", None), ("prox", None), ("ref", None)):
        to = near["logp_old_BT"] if to is None else to
        near[f"logp_{name}_BT"] = to + gap * rng.normal(size=shape)
    batch = make_batch(
        np.tile(layout, (rows, 1)),
        np.tile(segment, (rows, 1)),
        advantage_BC=rng.normal(size=(rows, 4)),
        **near,
    )
    return f32(logp_BT), f32(rng.exponential(1.0, shape)), batch


def f32(x):
    return np.asarray(x, np.float32)


ROWS, LENGTH, NUM_CHUNKS = 4, 18, 5  # of every batch, so that each operation is compiled once


def loss_and_grad(logp_BT, batch, hp=IPA, mismatch=OFF, loss_denominator=6.0, entropy_BT=None):
    """(loss, sums, gradient with respect to logp_BT), as numpy arrays, of a batch that is padded to
    [ROWS, LENGTH]."""
    rows, length = logp_BT.shape

    def pad(x_BT, value=0):
        dtype = np.float32 if np.issubdtype(x_BT.dtype, np.floating) else np.int32
        padding = (0, ROWS - rows), (0, LENGTH - length)
        return jax.device_put(np.pad(x_BT, padding, constant_values=value).astype(dtype))

    entropy_BT = pad(np.zeros_like(logp_BT) if entropy_BT is None else entropy_BT)
    arrays = {name: pad(x_BT, -1 if name == "chunk_BT" else 0) for name, x_BT in batch.items()}

    def scalar(logp_BT):
        return policy_loss(logp_BT, entropy_BT, arrays, loss_denominator, NUM_CHUNKS, hp, mismatch)

    (value, sums), grad_BT = jax.device_get(jax.value_and_grad(scalar, has_aux=True)(pad(logp_BT)))
    assert not grad_BT[rows:].any() and not grad_BT[:, length:].any()
    return value, sums, grad_BT[:rows, :length]
