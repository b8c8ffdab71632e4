"""One update from a step's groups. This module is the algorithm, from top to bottom:

    groups -> rewards r_k of chunks                                tabulate_rewards
           -> A_k; of IPA, from G_k = r_k + gamma G_{k+1} (Eq 7)   credit_table
           -> samples -> packed minibatches, each with its Z       credited_samples, pack_all
           -> log pi_old, log pi_prox of tokens                    fill_old_logp
           -> log pi_ref, of the most probable tokens, too         with_reference
           -> A_t = sum_l (gamma lam)^l delta_{t+l} by critics     credit_by_critics
           -> A_t f_t where A_t > 0, by attention                  amplify_by_attention
           -> policy, by the gradient of (1/Z) sum_t L_t, once
              for each minibatch of each epoch                     policy_loss
           -> critics, by the gradient of sum_t (V(s_t) - R_t)^2   learn_values

`Programs` runs what needs weights. Everything else is a function of arrays, and stands in a file
that holds one of these ideas.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from ale_jax.algo.losses import count_loss_denominator
from ale_jax.config.algo import AlgoConfig
from ale_jax.config.credit import EPISODE
from ale_jax.config.critics import CriticsHypers
from ale_jax.config.learn import LearnConfig, Shape
from ale_jax.data.packing import Sample, pack_all
from ale_jax.data.replay import Group
from ale_jax.learn.attention_credit import amplify_by_attention
from ale_jax.learn.credit import RewardTable, credit_table, credited_samples, tabulate_rewards
from ale_jax.learn.critics import learn_values
from ale_jax.learn.old_policies import fill_old_logp
from ale_jax.learn.reference import ScoreBatches, divergence_from_reference, with_reference
from ale_jax.learn.scores import Scores
from ale_jax.learn.speed import Stopwatch
from ale_jax.learn.step import TokenUpdate
from ale_jax.learn.token_credit import (
    credit_by_critics,
    credit_token_returns,
    scale_advantages,
)
from ale_jax.records import Batch

Metrics = Mapping[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class LearnerOptions:
    """What a learner does with a step's groups.

    learn: the shape of the packed batches, and the number of updates.
    attention_credit: whether advantages are amplified by attention.
    """

    algo: AlgoConfig
    critics: CriticsHypers
    attention_credit: bool
    learn: LearnConfig


class Programs(Protocol):
    """The compiled programs of an update, with the weights that they run on. Weights are named by
    their version. Each list has an entry per batch.
    """

    @property
    def warming_up(self) -> bool:
        """Whether only the critics learn."""

    @property
    def learning_rate(self) -> float:
        """The rate of the last update, which it waits for."""

    def begin_step(self, *, version: int) -> None:
        """Keeps the present weights under this version, and begins a list of `token_updates`."""

    def logp(self, batches: Sequence[Batch], *, weights: int) -> list[np.ndarray]:
        """Returns log pi of each policy token, float32 [B, T]. weights: their version."""

    def reference(self, batches: Sequence[Batch]) -> list[Scores]:
        """Returns what the reference policy makes of the tokens."""

    def values(self, batches: Sequence[Batch]) -> list[Sequence[np.ndarray]]:
        """Returns V(s_t) of each critic, float32 [B, T]."""

    def attention_factors(self, batches: Sequence[Any], *, version: int) -> list[np.ndarray]:
        """Returns f_t, the factor on a positive advantage, float32 [B, T]."""

    def update(self, batches: Sequence[Batch], *, loss_denominator: float) -> Metrics:
        """Updates the policy once."""

    def speed(self, batches: Sequence[Batch], seconds: float) -> dict[str, float]:
        """Returns figures of updates that computed these batches in so many seconds."""

    def begin_decay(self) -> None:
        """Lets the policy's learning rate fall from now on."""

    def token_updates(self) -> list[TokenUpdate]:
        """Returns what the updates of this step were to each token: an entry for each batch of each
        update, in their order."""

    def update_critic(self, batches: Sequence[Any], *, number: int, tokens: int) -> Metrics:
        """Updates one critic once."""


class Minibatch(NamedTuple):
    """What one update is computed from: some of the step's batches, and what divides their loss."""

    batches: slice
    loss_denominator: np.float32


@dataclasses.dataclass(frozen=True)
class Step:
    """What a step's updates are made of. `samples` are the trajectories that can teach something.

    minibatches: those that have batches, which are in their order.
    sampled: with the trajectories that teach nothing.
    read_updates: reads what the first update with each batch was to its tokens, until the next
    step; [] if there was none.
    read_speed: waits for the updates, and tells how fast they were (`speed`).
    """

    batches: list[Batch]
    minibatches: list[Minibatch]
    table: RewardTable
    samples: list[Sample]
    sampled: Sequence[Sample] = ()
    read_updates: Callable[[], Sequence[TokenUpdate]] = list
    read_speed: Callable[[], dict[str, float]] = dict


def assemble(
    groups: Sequence[Group],
    algo: AlgoConfig,
    shape: Shape,
    imitated: Sequence[Sample] = (),
    minibatches: int = 1,
) -> Step:
    """Credits a step's groups and packs them, for each minibatch, into microbatches of one shape.

    imitated: what is learned beside them without being sampled, Eq 10; the loss_denominator, which
    counts what the policy wrote, does not count it.
    minibatches: the number of shares, of which each has every n-th group. All of a group are in
    one, so that each share holds successes and failures of the same tasks.

    A loss_denominator counts every valid trajectory of its share. Those whose advantages are all
    zero (groups of equal outcomes) are counted, and not computed, unless the loss has terms beside
    the advantages or credit is yet to come, to tokens. All that they could add is a balancing loss:
    the router of a mixture of experts is balanced on the trajectories that are computed.

    Two groups have two members of one token each, with the outcomes 1 and 0, and 1 and 1. By
    "outcome" and the group's mean, the first group's advantages are 1/2 and -1/2, and the second
    one's are 0. So `samples` are the first group's, and the loss_denominator is 4. In two
    minibatches, the first group's would have the loss_denominator 2, and the second none.
    """
    depth = algo.advantage.anchor_depth
    table = tabulate_rewards(groups, shape.chunks_per_pack, depth, algo.credit)
    every = credited_samples(table, credit_table(table, len(groups), algo), algo)
    all_teach = algo.teaches_without_credit or algo.advantage.of_tokens
    with_gradient = every if all_teach else [s for s in every if np.any(s.advantage_C)]
    batches: list[Batch] = []
    shares: list[Minibatch] = []
    for number in range(minibatches):
        share = slice(number, None, minibatches)
        taught = [s for s in with_gradient if s.group % minibatches == number] + [*imitated[share]]
        if own := pack_all(taught, shape):
            written = pack_all([s for s in every if s.group % minibatches == number], shape)
            rows = slice(len(batches), len(batches) + len(own))
            shares.append(Minibatch(rows, _loss_denominator(written, algo)))
            batches += own
    if algo.loss.observation_weight:
        batches = [dataclasses.replace(batch, read_BR=None) for batch in batches]
    if algo.advantage.estimator == "token_return":
        batches = credit_token_returns(batches, table.tag_G, algo)
    return Step(batches, shares, table, with_gradient, every)


def _loss_denominator(batches: Sequence[Batch], algo: AlgoConfig) -> np.float32:
    loss, by_episode = algo.loss, algo.credit.trajectory == EPISODE
    return count_loss_denominator(batches, loss.aggregation, loss.constant_tokens, by_episode)


class Learner:
    """Makes each step's updates, with the programs of a trainer."""

    def __init__(
        self, options: LearnerOptions, programs: Programs, reference: ScoreBatches | None = None
    ):
        """reference: a teacher that no program computes, in place of `programs.reference`."""
        algo = options.algo
        assert (options.critics.count > 0) == algo.advantage.from_critics
        self._options, self._programs, self._teacher = options, programs, reference

    def learn(
        self, groups: Sequence[Group], imitated: Sequence[Sample], version: int
    ) -> tuple[Step, list[Metrics], dict[str, float]]:
        """Returns (the step's batches and credit, sums of `make_train_step` for each update,
        figures).

        imitated: samples of the imitation term. version: of the present weights. The sums are still
        on the device. There are none if nothing has a gradient, and during the critics' warm-up.
        """
        options, programs = self._options, self._programs
        programs.begin_step(version=version)
        learn = options.learn
        step = assemble(groups, options.algo, learn, imitated, learn.minibatches)
        batches = fill_old_logp(step.batches, options.algo, version, self.logp)
        if options.algo.loss.kl_weight:
            batches = with_reference(batches, self._reference)
        divergence = self._divergence(batches, step.sampled)
        batches, figures = self._credit_tokens(batches, step.table.tag_G, version)
        figures |= divergence
        step = dataclasses.replace(step, batches=batches)
        if not batches:  # every group's outcomes were equal
            return step, [], figures
        updates: list[Metrics] = []
        if not programs.warming_up:
            watch = Stopwatch()
            updates = [self._update(step, some) for some in step.minibatches * learn.epochs]
            watch.stop_with(updates)
            computed, first_epoch = batches * learn.epochs, slice(len(batches))
            step = dataclasses.replace(
                step,
                read_updates=lambda: programs.token_updates()[first_epoch],
                read_speed=lambda: programs.speed(computed, watch.seconds()),
            )
        if options.critics.count:
            figures |= learn_values(batches, options.critics, options.algo, programs.update_critic)
        return step, updates, figures

    def _update(self, step: Step, some: Minibatch) -> Metrics:
        denominator = float(some.loss_denominator)
        return self._programs.update(step.batches[some.batches], loss_denominator=denominator)

    def logp(self, weights: int, batch: Batch) -> np.ndarray:
        """Returns the log-probability of each policy token, float32 [B, T]; 0 elsewhere. weights: a
        version that the trainer keeps."""
        return self._programs.logp([batch], weights=weights)[0]

    def _reference(self, batches: Sequence[Batch]) -> Sequence[Scores]:
        return (self._teacher or self._programs.reference)(batches)

    def _divergence(self, batches: list[Batch], sampled: Sequence[Sample]) -> dict[str, float]:
        """Returns the divergence from the reference over all that was sampled, if it is wanted."""
        loss, shape = self._options.algo.loss, self._options.learn
        if not loss.reads_reference:
            return {}
        if loss.kl_weight == 0.0:  # or else `batches` hold all of it, and have been filled
            batches = with_reference(pack_all(sampled, shape), self._reference)
        return divergence_from_reference(batches)

    def learning_rate(self) -> float:
        """Returns the rate of the policy's last update, which it waits for."""
        return self._programs.learning_rate

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
                options.learn.chunks_per_pack,
            )
            figures |= more
        return batches, figures
