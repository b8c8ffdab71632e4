"""One update from a step's groups: credit, the policies that are not moved, critics, gradient."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import optax
from jax.sharding import Mesh

from ale_jax.algo.algorithm import AlgoConfig
from ale_jax.algo.attention_credit import AttentionCreditHypers
from ale_jax.data.packing import Sample, Shape
from ale_jax.data.replay import Group
from ale_jax.learn.attention_credit import make_attention_credit
from ale_jax.learn.credit import Step, assemble, make_loss, scale_advantages
from ale_jax.learn.critics import Critics
from ale_jax.learn.old_policies import WeightHistory, make_logp, make_stage
from ale_jax.learn.state import TrainState
from ale_jax.learn.step import Metrics, make_train_step
from ale_jax.model.compute import Compute
from ale_jax.model.lora import LoraShape
from ale_jax.model.params import Params
from ale_jax.model.shape import PolicyShape
from ale_jax.records import Batch

ATTENTION_CREDIT_STREAM = 2  # of the run's key


class Learner:
    """Programs that are compiled once, and what they need of earlier steps."""

    def __init__(
        self,
        algo: AlgoConfig,
        attention_credit: AttentionCreditHypers,
        policy: PolicyShape,
        optimizer: optax.GradientTransformation,
        balance_weight: float,
        shape: Shape,
        mesh: Mesh,
        compute: Compute,
        lora: LoraShape,
        max_age: int,
        seed: int,
        critics: Critics | None = None,
        reference: Params | None = None,
    ):
        """max_age: in versions, of what is trained on. critics: with the estimator gae. reference:
        what the divergence is from, where the loss has one."""
        assert (critics is not None) == (algo.advantage.estimator == "gae")
        self._algo, self._shape, self._critics, self._seed = algo, shape, critics, seed
        loss = make_loss(algo, shape.chunks_per_pack)
        self._step = make_train_step(policy, optimizer, loss, balance_weight, mesh, compute, lora)
        self.logp = make_logp(policy, mesh, compute)
        self._history = WeightHistory(max_age + 1) if algo.old_logp == "generating" else None
        self._old_policies = make_stage(algo, self.logp, self._history, reference)
        self._attention_credit = None
        if attention_credit.credit != "none":
            self._attention_credit = make_attention_credit(
                policy, attention_credit, shape.chunks_per_pack, mesh, compute
            )

    def learn(
        self, state: TrainState, groups: Sequence[Group], imitated: Sequence[Sample], version: int
    ) -> tuple[TrainState, Step, Metrics, dict[str, float]]:
        """(new state, what it was made of, sums of `make_train_step`, figures).

        imitated: samples of the imitation term. version: of the state's weights. The sums are still
        on the device; {} if there was nothing to learn, or the critics are still to learn first.
        """
        if self._history:
            self._history.keep(version, state.params)
        made = assemble(groups, self._algo, self._shape, imitated)
        batches, figures = self._credited(state.params, made, version)
        made = dataclasses.replace(made, batches=batches)
        if not batches:  # every group's outcomes were equal
            return state, made, {}, figures
        sums: Metrics = {}
        if not (self._critics and self._critics.warming_up):
            state, sums = self._step(state, batches, made.loss_denominator)
        if self._critics:
            figures |= self._critics.learn(batches)
        return state, made, sums, figures

    def _credited(
        self, params: Params, made: Step, version: int
    ) -> tuple[list[Batch], dict[str, float]]:
        """The batches as the loss takes them."""
        batches, figures = self._old_policies(params, made.batches), {}
        if self._critics:
            batches, figures = self._critics.credit(
                batches, lambda b: scale_advantages(b, made.table.tag_G, self._algo.advantage)
            )
        if self._attention_credit:
            key = jax.random.fold_in(jax.random.key(self._seed), ATTENTION_CREDIT_STREAM)
            batches, more = self._attention_credit(
                params, batches, jax.random.fold_in(key, version)
            )
            figures |= more
        return batches, figures
