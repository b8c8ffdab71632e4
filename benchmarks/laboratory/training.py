"""Trains a policy of the laboratory, for many seeds at once."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ale_jax.algo.policy_loss import policy_loss
from ale_jax.config.algo import AlgoConfig
from ale_jax.config.loss import LossHypers
from benchmarks.laboratory.credit import (
    Arm,
    Rows,
    advantages,
    lay_out,
    learn_values,
    no_knowledge,
    token_values,
)
from benchmarks.laboratory.policies import POLICIES
from benchmarks.laboratory.world import (
    Played,
    Regime,
    Size,
    play,
    prior,
    right_words,
    success,
    without_slow,
)


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How long and on how much one learns. oldest: the largest age that a regime may have. blind:
    critics learn nothing."""

    policy: str = "table"
    updates: int = 100
    groups: int = 4
    members: int = 8
    oldest: int = 8
    blind: bool = False

    @property
    def episodes(self) -> int:
        """In one update."""
        return self.groups * self.members


@functools.partial(jax.jit, static_argnums=(3, 4, 5))
def _curves(seed_S, rate_S, world, arm, size, protocol):
    one = functools.partial(_curve, world=world, arm=arm, size=size, protocol=protocol)
    return jax.vmap(one)(seed_S, rate_S)


def curves(
    seeds: np.ndarray, rates: np.ndarray, world: Regime, arm: Arm, size: Size, protocol: Protocol
) -> np.ndarray:
    """Success after each update, and before the first, of a run for each of S seeds and learning
    rates, float32 [S, updates + 1]. One program serves every regime.

    Runs are spread over the devices. ValueError if the world is older than the protocol allows.
    """
    if world.age > protocol.oldest:
        raise ValueError(f"age {world.age} must be at most {protocol.oldest}: raise `oldest`")
    devices = jax.devices()
    spread = NamedSharding(Mesh(np.array(devices), "S"), PartitionSpec("S"))
    idle = -len(seeds) % len(devices)  # these repeat the last run
    padded = (np.pad(x, (0, idle), "edge") for x in (np.uint32(seeds), np.float32(rates)))
    runs = (jax.device_put(x, spread) for x in padded)
    return np.asarray(_curves(*runs, world, arm, size, protocol))[: len(seeds)]


def _curve(seed, rate, world: Regime, arm: Arm, size: Size, protocol: Protocol) -> jax.Array:
    policy = POLICIES[protocol.policy]
    world_key, begin_key, play_key = jax.random.split(jax.random.key(seed), 3)
    word_MD = right_words(world_key, size)
    prior_MDLV = prior(word_MD, world, size)
    task_N = jnp.repeat(jnp.arange(protocol.groups) % size.tasks, protocol.members)

    def logits(weights) -> jax.Array:
        return prior_MDLV + policy.logits(weights, size)

    def update(state, now):
        weights, moments, past, critics = state
        before = success(logits(weights), word_MD, world, size)
        key, number = now
        then = jax.tree.map(lambda x: x[-1 - world.age], past)
        played = play(key, logits(then), word_MD, world, task_N, size)
        # A key that `play` does not derive, so that all else stays as it is without slow groups.
        played = without_slow(jax.random.fold_in(key, 2), played, protocol.members, world)
        rows = lay_out(played, protocol.members, world, size)
        value_QNT = token_values(critics.value_QMD2, played)
        credit = advantages(played, rows, value_QNT, arm, world, protocol.groups)

        def use(_, state):
            # Each use is a step of its own, as with the trainer's `rl.max_uses`, and an epoch is
            # an update of a step, as with its `learn.epochs`.
            batch = batch_of(played, rows, credit, (logits(then), logits(state[0])), arm)
            loss = functools.partial(loss_of, batch=batch, played=played, algo=arm.algo)

            def epoch(_, state):
                weights, moments = state
                gradient = jax.grad(lambda weights: loss(logits(weights)))(weights)
                step, after = policy.optimizer().update(gradient, moments, weights)
                # Nothing is learned without credit, so that momentum does not move the weights.
                teaches = optax.tree.norm(gradient) > 0.0
                stepped = optax.apply_updates(weights, jax.tree.map(lambda x: -rate * x, step))
                return jax.tree.map(
                    lambda new, old: jnp.where(teaches, new, old), (stepped, after), state
                )

            return jax.lax.fori_loop(0, world.epochs, epoch, state)

        learned = jax.lax.fori_loop(0, world.uses, use, (weights, moments))
        if arm.count:
            if not protocol.blind:
                critics = learn_values(critics, played, rows, arm)
            ready = number >= arm.warmup_steps
            learned = jax.tree.map(lambda a, b: jnp.where(ready, a, b), learned, (weights, moments))
        weights, moments = learned
        past = jax.tree.map(lambda x, new: jnp.roll(x, -1, 0).at[-1].set(new), past, weights)
        return (weights, moments, past, critics), before

    weights = policy.begin(begin_key, size)
    past = jax.tree.map(lambda x: jnp.broadcast_to(x, (protocol.oldest + 1, *x.shape)), weights)
    begin = weights, policy.optimizer().init(weights), past, no_knowledge(arm, size)
    along = jax.random.split(play_key, protocol.updates), jnp.arange(protocol.updates)
    (weights, *_), before_U = jax.lax.scan(update, begin, along)
    return jnp.append(before_U, success(logits(weights), word_MD, world, size))


def batch_of(
    played: Played,
    rows: Rows,
    credit: tuple[jax.Array, jax.Array],
    logits: tuple[jax.Array, jax.Array],
    arm: Arm,
) -> dict[str, jax.Array]:
    """The arrays of a `Batch` that the loss reads. logits: of the weights that played, without the
    engine's gap, and of those at the start of the step, [M, D, L, V]."""

    def logp_NT(logits_MDLV) -> jax.Array:
        table_MDLV = jax.nn.log_softmax(logits_MDLV)
        return played.of_tokens(table_MDLV).reshape(rows.chunk_NT.shape)

    then, now = logits
    old = {"sampler": played.logits_MDLV, "generating": then, "step": now}[arm.algo.old_logp]
    advantage_NT, entropy_NT = credit
    return {
        "chunk_BT": rows.chunk_NT,
        "segment_BT": rows.segment_NT,
        "advantage_BT": advantage_NT,
        "entropy_BT": entropy_NT,
        "imitate_BT": jnp.zeros_like(advantage_NT),
        "logp_mu_BT": logp_NT(played.logits_MDLV),
        "logp_old_BT": logp_NT(old),
        "logp_prox_BT": logp_NT(now),
    }


def loss_of(
    logits_MDLV: jax.Array, batch: dict[str, jax.Array], played: Played, algo: AlgoConfig
) -> jax.Array:
    """The trainer's loss of a batch."""
    shape, table_MDLV = batch["chunk_BT"].shape, jax.nn.log_softmax(logits_MDLV)
    logp_NT = played.of_tokens(table_MDLV).reshape(shape)
    entropy_NT = -played.of_states(jnp.exp(table_MDLV) * table_MDLV).reshape(shape)
    chunks = played.live_NC.shape[1]
    about = loss_denominator(batch, algo.loss), chunks, algo.loss, algo.mismatch
    return policy_loss(logp_NT, entropy_NT, batch, *about)[0]


def loss_denominator(batch: dict[str, jax.Array], hp: LossHypers) -> jax.Array:
    """As `count_loss_denominator`, which counts on the host."""
    chunk_NT = batch["chunk_BT"]
    if hp.aggregation == "tokens":
        return (chunk_NT >= 0).sum()
    if hp.aggregation in ("chunks", "chunk_means"):
        return (chunk_NT.max(axis=1) + 1).sum()
    return jnp.float32(len(chunk_NT) * (hp.constant_tokens or 1))
