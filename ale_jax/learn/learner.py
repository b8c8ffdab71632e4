"""One update from a step's groups: old log-probabilities, credit, critics, gradient."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import optax

from ale_jax.algo.algorithm import AlgoConfig
from ale_jax.algo.attention_credit import AttentionCreditHypers
from ale_jax.data.packing import Sample, Shape
from ale_jax.data.replay import Group
from ale_jax.learn.attention_credit import make_attention_credit
from ale_jax.learn.credit import Step, assemble, make_loss, scale_advantages
from ale_jax.learn.critic_credit import credit_by_critics
from ale_jax.learn.critics import Critics
from ale_jax.learn.old_policies import WeightHistory, make_logp, make_stage
from ale_jax.learn.state import TrainState
from ale_jax.learn.step import Metrics, ModelSpec, make_train_step
from ale_jax.model.params import Params
from ale_jax.records import Batch

ATTENTION_CREDIT_STREAM = 2  # of the run's key


@dataclasses.dataclass(frozen=True)
class LearnerOptions:
    """What a learner does with a step's groups.

    shape: of the packed batches. max_age: of the trajectories, in versions of the weights.
    seed: of the run.
    """

    algo: AlgoConfig
    attention_credit: AttentionCreditHypers
    shape: Shape
    max_age: int
    seed: int


class Learner:
    """The compiled programs of an update, and the old weights that they need."""

    def __init__(
        self,
        options: LearnerOptions,
        model: ModelSpec,
        optimizer: optax.GradientTransformation,
        critics: Critics | None = None,
        reference: Params | None = None,
    ):
        """critics: required by the estimator gae, and only by it. reference: weights of the
        reference policy, if the loss has a divergence from it."""
        algo = options.algo
        assert (critics is not None) == (algo.advantage.estimator == "gae")
        self._options, self._critics = options, critics
        chunks_per_pack = options.shape.chunks_per_pack
        self._step = make_train_step(model, optimizer, make_loss(algo, chunks_per_pack))
        self.logp = make_logp(model.shape, model.mesh, model.compute)
        keeps_history = algo.old_logp == "generating"
        self._history = WeightHistory(options.max_age) if keeps_history else None
        self._old_policies = make_stage(algo, self.logp, self._history, reference)
        self._attention_credit = None
        if options.attention_credit.credit != "none":
            self._attention_credit = make_attention_credit(
                model.shape, options.attention_credit, chunks_per_pack, model.mesh, model.compute
            )

    def learn(
        self, state: TrainState, groups: Sequence[Group], imitated: Sequence[Sample], version: int
    ) -> tuple[TrainState, Step, Metrics, dict[str, float]]:
        """(new state, the step's batches and credit, sums of `make_train_step`, figures).

        imitated: samples of the imitation term. version: of the state's weights. The sums are still
        on the device. They are empty if nothing has a gradient, and during the critics' warm-up.
        """
        if self._history:
            self._history.keep(version, state.params)
        made = assemble(groups, self._options.algo, self._options.shape, imitated)
        batches, figures = self._credited(state.params, made, version)
        made = dataclasses.replace(made, batches=batches)
        if not batches:  # every group's outcomes were equal
            return state, made, {}, figures
        sums: Metrics = {}
        if not (self._critics and self._critics.warming_up):
            state, sums, updates = self._step(state, batches, made.loss_denominator)
            made = dataclasses.replace(made, updates=updates)
        if self._critics:
            figures |= self._critics.learn(batches)
        return state, made, sums, figures

    def _credited(
        self, params: Params, made: Step, version: int
    ) -> tuple[list[Batch], dict[str, float]]:
        """The batches as the loss takes them."""
        batches, figures = self._old_policies(params, made.batches), {}
        if self._critics:
            hp = self._options.algo.advantage
            batches, figures = credit_by_critics(
                self._critics, batches, lambda b: scale_advantages(b, made.table.tag_G, hp)
            )
        if self._attention_credit:
            key = jax.random.fold_in(jax.random.key(self._options.seed), ATTENTION_CREDIT_STREAM)
            batches, more = self._attention_credit(
                params, batches, jax.random.fold_in(key, version)
            )
            figures |= more
        return batches, figures
