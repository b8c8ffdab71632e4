"""The warm start: supervised training on oracles' transcripts and recorded conversations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec

from ale_jax.algo.losses import count_loss_denominator, sft_loss
from ale_jax.config.learn import Shape
from ale_jax.config.worlds import WarmStartConfig
from ale_jax.data.packing import Sample, pack_rows
from ale_jax.learn.finite import SkippedUpdates
from ale_jax.learn.rows import to_device
from ale_jax.learn.step import (
    ModelSpec,
    TrainStep,
    forward,
    make_train_step,
)
from ale_jax.model.params import Params
from ale_jax.records import Batch
from ale_jax.system.stage import Ending, Stage

REMEDY = (
    "look at loss and grad_norm in metrics.jsonl, and lower warm_start_optimizer.learning_rate or "
    "clip_norm"
)


class Supervised(Protocol):
    """A trainer of the supervised loss."""

    def supervise(
        self, batches: Sequence[Batch], *, loss_denominator: float
    ) -> Mapping[str, jax.Array]: ...


def warm_start(
    trainer: Supervised,
    updates: Iterator[Sequence[Batch]],
    measure: Callable[[], Mapping[str, float]],
    config: WarmStartConfig,
    log: Callable[[int, dict[str, float]], None],
    max_skipped: int,
) -> str:
    """Trains until `measure` says that it is enough; returns why it ended. updates: the batches of
    each update, at least of one.

    measure: figures that need no episode, of which these end it:
        PROBE_SUCCESS  the mean probability of oracles' transcripts of unseen tasks. This
            probability, the product over the policy tokens, is the chance that the policy, sampled
            at temperature 1, writes exactly this transcript. The mean estimates success smoothly,
            and a little low, because a task has other solutions.
        HELD_OUT_LOSS  of recorded conversations.

    `log(step, figures)` is called at each measurement. max_skipped: RunFailed after so many updates
    in a row that are not finite.
    """

    def update(batches: Sequence[Batch]) -> Mapping[str, jax.Array]:
        tokens = float(count_loss_denominator(batches, "tokens"))
        return trainer.supervise(batches, loss_denominator=tokens)

    def figures(sums: Mapping[str, jax.Array]) -> dict[str, float]:
        return {
            "loss": float(sums["nll"] / sums["tokens"]),
            "token_accuracy": float(sums["best"] / sums["tokens"]),
            "grad_norm": float(sums["grad_norm"]),
        }

    ending = Ending(
        config.probe_every, config.epochs, config.patience, config.max_steps, config.target_success
    )
    stage = Stage(update, figures, measure, log)
    return stage.run(updates, ending, SkippedUpdates(max_skipped, REMEDY))


def make_supervised_step(model: ModelSpec, optimizer: optax.GradientTransformation) -> TrainStep:
    """Returns a training step of the supervised loss, Eq 1."""

    def loss_fn(scores, arrays, loss_denominator):
        return sft_loss(scores.logp_BT, arrays["chunk_BT"], loss_denominator)

    return make_train_step(model, optimizer, loss_fn)


def full_rows(samples: Iterator[Sample], rows: int, shape: Shape) -> Iterator[list[Batch]]:
    """Yields the batches of each update, `rows` rows of `samples`. Samples that do not fit wait for
    a later update; never more than twice an update's tokens are waiting. If the samples end, the
    last updates have fewer."""
    waiting: list[Sample] = []
    for sample in samples:
        waiting.append(sample)
        # With twice what fits to choose from, little of the rows stays empty.
        if sum(s.num_tokens for s in waiting) >= 2 * rows * shape.pack_length:
            batches, waiting = pack_rows(waiting, rows, shape)
            yield batches
    while waiting:
        batches, waiting = pack_rows(waiting, rows, shape)
        yield batches


def make_nll(model: ModelSpec) -> Callable[[Params, Batch], float]:
    """Makes a function (weights, batch) -> minus the log-probability of the batch's policy
    tokens."""

    @functools.partial(jax.jit, out_shardings=NamedSharding(model.mesh, PartitionSpec()))
    def nll(params, arrays):
        scores, _ = forward(params, arrays, model.shape, model.compute)
        return -jnp.where(arrays["chunk_BT"] >= 0, scores.logp_BT, 0.0).sum()

    return _on_mesh(nll, model)


def make_probability(model: ModelSpec, shape: Shape) -> Callable[[Params, Batch], float]:
    """Makes a function (weights, batch) -> sum over the batch's samples of the probability of their
    policy tokens."""
    segments = shape.chunks_per_pack + 1  # 0 is padding; a row has no more samples than chunks

    @functools.partial(jax.jit, out_shardings=NamedSharding(model.mesh, PartitionSpec()))
    def probability(params, arrays):
        scores, _ = forward(params, arrays, model.shape, model.compute)
        logp_BT = jnp.where(arrays["chunk_BT"] >= 0, scores.logp_BT, 0.0)
        by_segment = jax.vmap(lambda x, s: jax.ops.segment_sum(x, s, num_segments=segments))
        logp_BJ = by_segment(logp_BT, arrays["segment_BT"])
        real_BJ = jnp.arange(segments)[None, :] <= arrays["segment_BT"].max(axis=1)[:, None]
        return jnp.where(real_BJ, jnp.exp(logp_BJ), 0.0)[:, 1:].sum()

    return _on_mesh(probability, model)


def _on_mesh(function: Callable[..., jax.Array], model: ModelSpec) -> Callable[..., float]:
    """Returns a function of weights and a batch of this process."""

    def ask(params: Params, batch: Batch) -> float:
        with jax.set_mesh(model.mesh):
            return float(function(params, to_device(batch, model.mesh)))

    return ask
