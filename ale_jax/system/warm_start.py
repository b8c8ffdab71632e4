"""The warm start: supervised training on oracle transcripts, stopped while most tasks fail."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from ale_jax.algo.losses import count_loss_denominator, sft_loss
from ale_jax.data.packing import Sample, Shape, pack, pack_all
from ale_jax.learn.state import TrainState
from ale_jax.learn.step import forward, make_train_step, router_figures, to_device
from ale_jax.model.compute import FLOAT32, Compute
from ale_jax.model.lora import LoraShape
from ale_jax.model.params import Params
from ale_jax.model.shape import PolicyShape
from ale_jax.records import Batch
from ale_jax.system.config import LearnConfig, WarmStartConfig


def warm_start(
    state: TrainState,
    optimizer,
    train: Iterator[Sample],
    probe: Sequence[Sample],
    policy: PolicyShape,
    learn: LearnConfig,
    lora: LoraShape,
    config: WarmStartConfig,
    mesh: Mesh,
    log: Callable[[int, dict[str, float]], None],
) -> TrainState:
    """Trains on `train`, which never ends, until the policy would play a share of `target_success`
    of the `probe` as the oracle does. `log(step, figures)` is called at each probe.

    The probability of a whole transcript, the product over its policy tokens, is the chance that
    the policy, sampled at temperature 1, writes just that. Its mean over unseen tasks is a smooth
    estimate of success, asked without playing; a little low, as there are other ways to succeed.
    """
    shape = learn.shape
    train_step = make_train_step(
        policy,
        optimizer,
        lambda scores, arrays, z: sft_loss(scores.logp_BT, arrays["chunk_BT"], z),
        learn.balance_weight,
        mesh,
        learn.compute,
        lora,
    )
    ask = make_probe(probe, policy, shape, mesh, learn.compute)
    stream = full_batches(train, shape)
    for step in range(1, config.max_steps + 1):
        batch = list(itertools.islice(stream, config.batches_per_step))
        state, sums = train_step(state, batch, count_loss_denominator(batch, "tokens"))
        if step % config.probe_every:
            continue
        success = ask(state.params)
        figures = {
            "loss": float(sums["nll"] / sums["tokens"]),
            "token_accuracy": float(sums["best"] / sums["tokens"]),
            "grad_norm": float(sums["grad_norm"]),
            "probe_success": success,
            **router_figures(jax.device_get(sums)),
        }
        log(step, figures)
        if success >= config.target_success:
            break
    return state


def full_batches(samples: Iterator[Sample], shape: Shape) -> Iterator[Batch]:
    """Batches of `samples`, which never end; what does not fit a batch waits for a later one, and
    never is more than twice a batch waiting."""
    waiting: list[Sample] = []
    for sample in samples:
        waiting.append(sample)
        # With twice what fits to choose from, little of the batch stays empty.
        if sum(s.num_tokens for s in waiting) >= 2 * shape.microbatch_rows * shape.pack_length:
            batch, waiting = pack(waiting, shape)
            yield batch


def make_probe(
    samples: Sequence[Sample],
    policy: PolicyShape,
    shape: Shape,
    mesh: Mesh,
    compute: Compute = FLOAT32,
) -> Callable[[Params], float]:
    """A function of the weights: the mean probability of `samples`, policy tokens only."""
    batches = pack_all(samples, shape)
    segments = shape.chunks_per_pack + 1  # 0 is padding; a row has no more samples than chunks

    @jax.jit
    def probability(params, arrays):
        scores, _ = forward(params, arrays, policy, compute)
        logp_BT = jnp.where(arrays["chunk_BT"] >= 0, scores.logp_BT, 0.0)
        by_segment = jax.vmap(lambda x, s: jax.ops.segment_sum(x, s, num_segments=segments))
        logp_BJ = by_segment(logp_BT, arrays["segment_BT"])
        real_BJ = jnp.arange(segments)[None, :] <= arrays["segment_BT"].max(axis=1)[:, None]
        return jnp.where(real_BJ, jnp.exp(logp_BJ), 0.0)[:, 1:].sum()

    def ask(params: Params) -> float:
        with jax.set_mesh(mesh):
            total = sum(float(probability(params, to_device(b, mesh))) for b in batches)
        return total / len(samples)

    return ask
