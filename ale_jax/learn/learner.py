"""One update from a step's groups: old log-probabilities, credit, critics, gradient."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import jax
import numpy as np

from ale_jax.algo.algorithm import AlgoConfig
from ale_jax.data.packing import Sample, Shape
from ale_jax.data.replay import Group
from ale_jax.learn.attention_credit import amplify_by_attention
from ale_jax.learn.credit import Step, assemble, scale_advantages
from ale_jax.learn.critic_credit import ValueModels, credit_by_critics, learn_values
from ale_jax.learn.critics import CriticsHypers
from ale_jax.learn.old_policies import make_stage
from ale_jax.learn.step import TokenUpdate
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
    their version.

    warming_up: whether only the critics learn.
    """

    warming_up: bool

    def begin_step(self, *, version: int) -> None: ...

    def logp(self, batches: Sequence[Batch], *, weights: int | str) -> list[np.ndarray]: ...

    def values(self, batches: Sequence[Batch]) -> list[Sequence[np.ndarray]]: ...

    def attention_factors(self, batches: Sequence[Any], *, version: int) -> list[np.ndarray]: ...

    def update(self, batches: Sequence[Batch], *, loss_denominator: float) -> Metrics: ...

    def begin_decay(self) -> None: ...

    def token_updates(self) -> list[TokenUpdate]: ...

    def update_critic(self, batches: Sequence[Any], *, number: int, tokens: int) -> Metrics: ...


class Learner:
    """Makes each step's update with the programs of a trainer."""

    def __init__(self, options: LearnerOptions, trainer: Programs):
        algo = options.algo
        assert (options.critics.count > 0) == algo.advantage.from_critics
        self._options, self._trainer = options, trainer
        self._old_policies = make_stage(algo, self.logp)
        self._critics: ValueModels | None = None
        if options.critics.count:
            self._critics = SimpleNamespace(
                hp=options.critics,
                gamma=algo.gamma,
                values=trainer.values,
                update=lambda batches, number, tokens: trainer.update_critic(
                    batches, number=number, tokens=tokens
                ),
            )

    def logp(self, weights: int | str, batch: Batch) -> np.ndarray:
        """The log-probability of each policy token, float32 [B, T]; 0 elsewhere. weights: a version
        that the trainer keeps, or REFERENCE."""
        return self._trainer.logp([batch], weights=weights)[0]

    def learn(
        self, groups: Sequence[Group], imitated: Sequence[Sample], version: int
    ) -> tuple[Step, Metrics, dict[str, float]]:
        """(the step's batches and credit, sums of `make_train_step`, figures).

        imitated: samples of the imitation term. version: of the present weights. The sums are still
        on the device. They are empty if nothing has a gradient, and during the critics' warm-up.
        """
        self._trainer.begin_step(version=version)
        made = assemble(groups, self._options.algo, self._options.shape, imitated)
        batches, figures = self._credited(made, version)
        made = dataclasses.replace(made, batches=batches)
        if not batches:  # every group's outcomes were equal
            return made, {}, figures
        sums: Metrics = {}
        if not self._trainer.warming_up:
            denominator = float(made.loss_denominator)
            sums = self._trainer.update(batches, loss_denominator=denominator)
            made = dataclasses.replace(made, read_updates=self._trainer.token_updates)
        if self._critics:
            by_chunk = self._options.algo.advantage.steps_are_chunks
            figures |= learn_values(self._critics, batches, by_chunk)
        return made, sums, figures

    def begin_decay(self) -> None:
        """The policy's learning rate falls from now on, if that has not begun."""
        self._trainer.begin_decay()

    def _credited(self, made: Step, version: int) -> tuple[list[Batch], dict[str, float]]:
        """The batches as the loss takes them."""
        batches, figures = self._old_policies(version, made.batches), {}
        if self._critics:
            hp = self._options.algo.advantage
            batches, figures = credit_by_critics(
                self._critics,
                batches,
                lambda b: scale_advantages(b, made.table.tag_G, hp),
                hp.steps_are_chunks,
                hp.blends,
            )
        if self._options.attention_credit:
            batches, more = amplify_by_attention(
                batches,
                lambda rows: self._trainer.attention_factors(rows, version=version),
                self._options.shape.chunks_per_pack,
            )
            figures |= more
        return batches, figures
