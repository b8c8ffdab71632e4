"""One step's credit: from finished groups to packed batches and the loss that goes with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
import numpy as np

from ale_jax.algo.advantages import Rewards, credit_chunks
from ale_jax.algo.algorithm import AdvantageHypers, AlgoConfig
from ale_jax.algo.baselines import scale_token_advantages, token_returns
from ale_jax.algo.losses import count_loss_denominator
from ale_jax.algo.policy_loss import policy_loss
from ale_jax.data.packing import Sample, Shape, pack_all
from ale_jax.data.replay import Group
from ale_jax.data.rewards import RewardTable, credited_samples, tabulate_rewards
from ale_jax.learn.critic_batches import of_time_steps, time_steps
from ale_jax.learn.step import LossFn, TokenUpdate
from ale_jax.records import Batch


def make_loss(algo: AlgoConfig, chunks_per_pack: int) -> LossFn:
    """The loss for `make_train_step`; chunks_per_pack: of the batches' shape."""

    def loss_fn(scores, arrays, loss_denominator):
        return policy_loss(
            scores.logp_BT,
            scores.entropy_BT,
            arrays,
            loss_denominator,
            chunks_per_pack,
            algo.loss,
            algo.mismatch,
        )

    return loss_fn


@dataclasses.dataclass(frozen=True)
class Step:
    """What one update is made of. `samples` are the trajectories that can teach something.

    read_updates: reads what the update was to the tokens of each batch, until the next update; []
    if there was none.
    """

    batches: list[Batch]
    loss_denominator: np.float32
    table: RewardTable
    samples: list[Sample]
    read_updates: Callable[[], Sequence[TokenUpdate]] = list


def assemble(
    groups: Sequence[Group], algo: AlgoConfig, shape: Shape, imitated: Sequence[Sample] = ()
) -> Step:
    """Credits a step's groups and packs them into microbatches of one shape.

    imitated: what is learned beside them without being sampled, Eq 10; the loss_denominator, which
    counts what the policy wrote, does not count it.

    The loss_denominator counts every valid trajectory. Those whose advantages are all zero (groups
    of equal outcomes) are counted, and not computed, unless the loss has terms beside the
    advantages or credit is yet to come, to tokens. All that they could add is a balancing loss: the
    router of a mixture of experts is balanced on the trajectories that are computed.
    """
    table = tabulate_rewards(groups, shape.chunks_per_pack, algo.advantage.anchor_depth)
    credit = jax.device_get(_credit(_rewards(table), len(groups), algo.gamma, algo.advantage))
    every = credited_samples(table, *credit)
    all_teach = algo.teaches_without_credit or algo.advantage.of_tokens
    with_gradient = every if all_teach else [s for s in every if np.any(s.advantage_C)]
    loss, packed = algo.loss, pack_all(every, shape)
    loss_denominator = count_loss_denominator(packed, loss.aggregation, loss.constant_tokens)
    batches = pack_all([*with_gradient, *imitated], shape)
    if algo.advantage.estimator == "token_return":
        batches = _credit_tokens(batches, table.tag_G, algo)
    return Step(batches, loss_denominator, table, with_gradient)


_credit = jax.jit(credit_chunks, static_argnums=(1, 2, 3))


def _rewards(table: RewardTable) -> Rewards:
    return Rewards(*(getattr(table, name) for name in Rewards._fields))


def _credit_tokens(batches: list[Batch], tag_G: np.ndarray, algo: AlgoConfig) -> list[Batch]:
    returns = [_token_returns(b.reward_BT, b.chunk_BT, b.segment_BT, algo.gamma) for b in batches]
    return scale_advantages(_with_advantages(batches, returns), tag_G, algo.advantage)


def scale_advantages(batches: list[Batch], tag_G: np.ndarray, hp: AdvantageHypers) -> list[Batch]:
    """The batches of a whole step with `hp`'s mean, std and clip applied to the advantages of their
    tokens. tag_G: of `RewardTable`.

    Mean and std are over time steps: a chunk that is one counts once, whatever its length.
    """
    if not batches:
        return batches
    # Steps differ in how many batches they have: of few sizes few programs are compiled.
    room = 1 << (len(batches) - 1).bit_length()

    def stack(arrays_BT: list[np.ndarray]) -> np.ndarray:
        empty_BT = np.zeros_like(arrays_BT[0])  # not written, so not looked at
        return np.stack(arrays_BT + [empty_BT] * (room - len(batches)))

    by_chunk = hp.steps_are_chunks
    advantage_MBT = _scale_token_advantages(
        stack([b.advantage_BT for b in batches]),
        stack([time_steps(b, by_chunk) for b in batches]),
        stack([b.group_BT for b in batches]),
        tag_G,
        hp,
    )
    scaled = zip(batches, jax.device_get(advantage_MBT))  # without the empty ones
    return _with_advantages(batches, [of_time_steps(x_BT, b, by_chunk) for b, x_BT in scaled])


def _with_advantages(batches: list[Batch], advantages: list[np.ndarray]) -> list[Batch]:
    return [
        dataclasses.replace(b, advantage_BT=np.asarray(advantage_BT))
        for b, advantage_BT in zip(batches, advantages, strict=True)
    ]


_token_returns = jax.jit(token_returns, static_argnums=3)
_scale_token_advantages = jax.jit(scale_token_advantages, static_argnums=4)
