"""One update from a step's groups. This module is the algorithm, from top to bottom:

    groups -> rewards r_k of chunks                                tabulate_rewards
           -> A_k; of IPA, from G_k = r_k + gamma G_{k+1} (Eq 7)   credit_table
           -> samples -> packed batches, and the denominator Z     credited_samples, pack_all
           -> log pi_old, log pi_prox, log pi_ref of tokens        fill_old_logp
           -> A_t = sum_l (gamma lam)^l delta_{t+l} by critics     credit_by_critics
           -> A_t f_t where A_t > 0, by attention                  amplify_by_attention
           -> policy, by the gradient of (1/Z) sum_t L_t           policy_loss
           -> critics, by the gradient of sum_t (V(s_t) - R_t)^2   learn_values

`Programs` runs what needs weights. Everything else is a function of arrays, and stands in a file
that holds one of these ideas.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from ale_jax.algo.losses import count_loss_denominator
from ale_jax.algo.policy_loss import policy_loss
from ale_jax.config.algo import AlgoConfig
from ale_jax.config.critics import CriticsHypers
from ale_jax.config.learn import Shape
from ale_jax.data.packing import Sample, pack_all
from ale_jax.data.replay import Group
from ale_jax.learn.attention_credit import amplify_by_attention
from ale_jax.learn.credit import RewardTable, credit_table, credited_samples, tabulate_rewards
from ale_jax.learn.critics import learn_values
from ale_jax.learn.old_policies import fill_old_logp
from ale_jax.learn.step import LossFn, TokenUpdate
from ale_jax.learn.token_credit import (
    credit_by_critics,
    credit_token_returns,
    scale_advantages,
)
from ale_jax.model.policy import TokenScores
from ale_jax.records import Batch

Metrics = Mapping[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class LearnerOptions:
    """What a learner does with a step's groups.

    shape: of the packed batches.
    attention_credit: whether advantages are amplified by attention.
    """

    algo: AlgoConfig
    critics: CriticsHypers
    attention_credit: bool
    shape: Shape


class Programs(Protocol):
    """The compiled programs of an update, with the weights that they run on. Weights are named by
    their version. Each list has an entry per batch.
    """

    @property
    def warming_up(self) -> bool:
        """Whether only the critics learn."""

    def begin_step(self, *, version: int) -> None:
        """Keeps the present weights under this version."""

    def logp(self, batches: Sequence[Batch], *, weights: int | str) -> list[np.ndarray]:
        """Returns log pi of each policy token, float32 [B, T]."""

    def values(self, batches: Sequence[Batch]) -> list[Sequence[np.ndarray]]:
        """Returns V(s_t) of each critic, float32 [B, T]."""

    def attention_factors(self, batches: Sequence[Any], *, version: int) -> list[np.ndarray]:
        """Returns f_t, the factor on a positive advantage, float32 [B, T]."""

    def update(self, batches: Sequence[Batch], *, loss_denominator: float) -> Metrics:
        """Updates the policy once."""

    def begin_decay(self) -> None:
        """Lets the policy's learning rate fall from now on."""

    def token_updates(self) -> list[TokenUpdate]:
        """Returns what the last update was to each token."""

    def update_critic(self, batches: Sequence[Any], *, number: int, tokens: int) -> Metrics:
        """Updates one critic once."""


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

    Two groups have two members of one token each, with the outcomes 1 and 0, and 1 and 1. By
    "outcome" and the group's mean, the first group's advantages are 1/2 and -1/2, and the second
    one's are 0. So `samples` are the first group's, and the loss_denominator is 4.
    """
    table = tabulate_rewards(groups, shape.chunks_per_pack, algo.advantage.anchor_depth)
    every = credited_samples(table, credit_table(table, len(groups), algo))
    all_teach = algo.teaches_without_credit or algo.advantage.of_tokens
    with_gradient = every if all_teach else [s for s in every if np.any(s.advantage_C)]
    loss, packed = algo.loss, pack_all(every, shape)
    loss_denominator = count_loss_denominator(packed, loss.aggregation, loss.constant_tokens)
    batches = pack_all([*with_gradient, *imitated], shape)
    if algo.advantage.estimator == "token_return":
        batches = credit_token_returns(batches, table.tag_G, algo)
    return Step(batches, loss_denominator, table, with_gradient)


class Learner:
    """Makes each step's update, with the programs of a trainer."""

    def __init__(self, options: LearnerOptions, programs: Programs):
        algo = options.algo
        assert (options.critics.count > 0) == algo.advantage.from_critics
        self._options, self._programs = options, programs

    def learn(
        self, groups: Sequence[Group], imitated: Sequence[Sample], version: int
    ) -> tuple[Step, Metrics, dict[str, float]]:
        """Returns (the step's batches and credit, sums of `make_train_step`, figures).

        imitated: samples of the imitation term. version: of the present weights. The sums are still
        on the device. They are empty if nothing has a gradient, and during the critics' warm-up.
        """
        options, programs = self._options, self._programs
        programs.begin_step(version=version)
        step = assemble(groups, options.algo, options.shape, imitated)
        batches = fill_old_logp(step.batches, options.algo, version, self.logp)
        batches, figures = self._credit_tokens(batches, step.table.tag_G, version)
        step = dataclasses.replace(step, batches=batches)
        if not batches:  # every group's outcomes were equal
            return step, {}, figures
        sums: Metrics = {}
        if not programs.warming_up:
            sums = programs.update(batches, loss_denominator=float(step.loss_denominator))
            step = dataclasses.replace(step, read_updates=programs.token_updates)
        if options.critics.count:
            figures |= learn_values(batches, options.critics, options.algo, programs.update_critic)
        return step, sums, figures

    def logp(self, weights: int | str, batch: Batch) -> np.ndarray:
        """Returns the log-probability of each policy token, float32 [B, T]; 0 elsewhere. weights: a
        version that the trainer keeps, or REFERENCE."""
        return self._programs.logp([batch], weights=weights)[0]

    def begin_decay(self) -> None:
        """Lets the policy's learning rate fall from now on, if that has not begun."""
        self._programs.begin_decay()

    def _credit_tokens(
        self, batches: list[Batch], tag_G: np.ndarray, version: int
    ) -> tuple[list[Batch], dict[str, float]]:
        """Adds the credit that needs a model: critics' values, then attention."""
        options, programs = self._options, self._programs
        figures: dict[str, float] = {}
        if options.critics.count:
            batches, figures = credit_by_critics(
                batches,
                programs.values(batches),
                options.critics,
                options.algo,
                lambda plain: scale_advantages(plain, tag_G, options.algo.advantage),
            )
        if options.attention_credit:
            batches, more = amplify_by_attention(
                batches,
                lambda rows: programs.attention_factors(rows, version=version),
                options.shape.chunks_per_pack,
            )
            figures |= more
        return batches, figures


def make_loss(algo: AlgoConfig, chunks_per_pack: int) -> LossFn:
    """Makes the loss for `make_train_step`. chunks_per_pack: of the batches' shape."""

    def loss_fn(
        scores: TokenScores, arrays: dict[str, jax.Array], loss_denominator: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
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
