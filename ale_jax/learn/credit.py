"""One step's credit: from finished groups to packed batches and the loss that goes with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
import numpy as np

from ale_jax.algo.grpo import GrpoHypers, grpo_loss
from ale_jax.algo.ipa import IpaHypers, ipa_loss
from ale_jax.algo.normaliser import count_normaliser
from ale_jax.algo.returns import Credit, grpo_advantages, ipa_advantages
from ale_jax.data.packing import Sample, Shape, pack_all
from ale_jax.data.replay import Group
from ale_jax.data.rewards import RewardTable, credited_samples, tabulate_rewards
from ale_jax.learn.step import LossFn
from ale_jax.records import Batch


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """What distinguishes one policy-gradient algorithm from another.

    advantages: (table, number of groups) -> Credit. loss: for make_train_step.
    normaliser: kind of count that the loss is divided by. old_logp: "sampler" or "trainer".
    """

    advantages: Callable[[RewardTable, int], Credit]
    loss: LossFn
    normaliser: str
    old_logp: str


def ipa(hp: IpaHypers) -> Algorithm:
    advantages = jax.jit(ipa_advantages, static_argnums=(5, 6))

    def credit(table: RewardTable, num_groups: int) -> Credit:
        return advantages(
            table.reward_NC,
            table.outcome_N,
            table.num_chunks_N,
            table.group_N,
            table.valid_N,
            num_groups,
            hp,
        )

    return Algorithm(credit, _loss(ipa_loss, hp), hp.normaliser, hp.old_logp)


def grpo(hp: GrpoHypers) -> Algorithm:
    advantages = jax.jit(grpo_advantages, static_argnums=(4, 5, 6))

    def credit(table: RewardTable, num_groups: int) -> Credit:
        return advantages(
            table.outcome_N,
            table.num_chunks_N,
            table.group_N,
            table.valid_N,
            num_groups,
            table.reward_NC.shape[1],
            hp,
        )

    return Algorithm(credit, _loss(grpo_loss, hp), hp.normaliser, hp.old_logp)


def _loss(loss, hp) -> LossFn:
    def loss_fn(scores, arrays, normaliser):
        return loss(
            scores.logp_BT,
            arrays["logp_old_BT"],
            arrays["logp_mu_BT"],
            arrays["chunk_BT"],
            arrays["advantage_BC"],
            arrays["positive_BC"],
            normaliser,
            hp,
        )

    return loss_fn


@dataclasses.dataclass(frozen=True)
class Step:
    """What one update is made of. `samples` are the trajectories that can teach something."""

    batches: list[Batch]
    normaliser: np.float32
    table: RewardTable
    credit: Credit
    samples: list[Sample]


def assemble(groups: Sequence[Group], algorithm: Algorithm, shape: Shape) -> Step:
    """Credits a step's groups and packs them into microbatches of one shape.

    The normaliser counts every valid trajectory. Those whose advantages are all zero (groups of
    equal outcomes) have no gradient: they are counted, and not computed.
    """
    table = tabulate_rewards(groups, shape.chunks_per_row)
    credit = Credit(*jax.device_get(tuple(algorithm.advantages(table, len(groups)))))
    every = credited_samples(table, credit.advantage_NC, credit.positive_N)
    teaching = [s for s in every if np.any(s.advantage_C)]
    normaliser = count_normaliser(pack_all(every, shape), algorithm.normaliser)
    return Step(pack_all(teaching, shape), normaliser, table, credit, teaching)
