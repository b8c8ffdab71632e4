"""Learning from preference pairs, with the programs of a trainer."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import optax

from ale_jax.algo.preferences import CHOSEN, REJECTED, pair_terms, weighted_logp_loss
from ale_jax.config.preferences import PreferencesConfig
from ale_jax.config.run import RunConfig
from ale_jax.data.mixing import end_of_epochs, mix
from ale_jax.data.packing import pack_all
from ale_jax.learn.finite import SkippedUpdates
from ale_jax.learn.step import ModelSpec, TrainStep, make_train_step
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.recorded.pair_sets import PairSet, SamplePair, read_pairs
from ale_jax.records import Batch
from ale_jax.system.stage import HELD_OUT_LOSS, Ending, Stage

REMEDY = (
    "look at loss and grad_norm in metrics.jsonl, and lower preferences_optimizer.learning_rate or "
    "clip_norm"
)
ACCURACY, MARGIN = "accuracy", "margin"


class PairTrainer(Protocol):
    """What a trainer does for pairs."""

    def present_logp(self, batches: Sequence[Batch]) -> list[np.ndarray]: ...

    def prefer(self, batches: Sequence[Batch], *, loss_denominator: float) -> Mapping[str, Any]: ...


@dataclasses.dataclass(frozen=True)
class ReferredPair:
    """A pair, and the log-probabilities of its answers under the reference, float64 [2]."""

    samples: SamplePair
    reference_A: np.ndarray


def make_preference_step(model: ModelSpec, optimizer: optax.GradientTransformation) -> TrainStep:
    """Returns a training step of log-probabilities with the weights of their answers."""

    def loss_fn(scores, arrays, loss_denominator):
        weights = arrays["advantage_BT"], arrays["chunk_BT"]
        return weighted_logp_loss(scores.logp_BT, *weights, loss_denominator), {}

    return make_train_step(model, optimizer, loss_fn)


def read_pair_sets(
    config: RunConfig,
    tokenizer: ChatTokenizer,
    check: Callable[[], None],
    record: Callable[[str, str], None],
) -> list[PairSet]:
    """Reads the pairs, and records an event for each set that says what became of them. check: is
    called between pairs, and may end it. ValueError as from `read_pairs`."""
    sets = []
    for data in config.preferences.data:
        found = read_pairs(data, config, tokenizer, lambda number: check())
        record("recorded_data", found.account)
        sets.append(found)
    return sets


def count_updates(hp: PreferencesConfig, sets: Sequence[PairSet]) -> int:
    """Returns the number of updates to the end of the epochs."""
    return math.ceil(_count_pairs(hp, sets) / hp.pairs_per_step)


def _count_pairs(hp: PreferencesConfig, sets: Sequence[PairSet]) -> int:
    sizes = [len(each.learned) for each in sets]
    return end_of_epochs(sizes, tuple(each.data.ratio for each in sets), hp.epochs)


class Preferences:
    """Pairs that are learned, and others of the same sets that are measured.

    The reference is the policy as the trainer has it when this is made. Its log-probabilities are
    computed then, once for each pair.
    """

    def __init__(
        self,
        config: RunConfig,
        sets: Sequence[PairSet],
        trainer: PairTrainer,
        on_progress: Callable[[int], None],
    ):
        """on_progress: is told how many pairs have been compared with the reference."""
        self._hp, self._shape, self._seed = config.preferences, config.learn, config.seed
        self._trainer = trainer
        self._ratios = tuple(each.data.ratio for each in sets)
        self._names = [each.data.name for each in sets]
        self._last = _count_pairs(config.preferences, sets)
        done = itertools.count(1)

        def refer(pairs: Sequence[SamplePair]) -> Iterator[ReferredPair]:
            for some in self._parts(pairs):
                for pair, reference_A in zip(some, self._logp(self._pack(some)), strict=True):
                    yield ReferredPair(pair, reference_A)
                    on_progress(next(done))

        self._learned = [list(refer(each.learned)) for each in sets]
        self._held_out = [list(refer(each.held_out)) for each in sets]

    def updates(self) -> Iterator[list[ReferredPair]]:
        """Yields the pairs of each update to the end of the epochs, in the ratios of the sets. Each
        pass through a set has a new random order."""
        pairs = itertools.islice(mix(self._learned, self._ratios, self._seed), self._last)
        while some := list(itertools.islice(pairs, self._hp.pairs_per_step)):
            yield some

    def learn(
        self,
        updates: Iterator[list[ReferredPair]],
        log: Callable[[int, dict[str, float]], None],
        max_skipped: int,
    ) -> str:
        """Makes these updates, or those until the loss on what is held out no longer falls; returns
        why they ended. log, max_skipped: as in `warm_start`."""
        ending = Ending(self._hp.measure_every, self._hp.epochs, self._hp.patience)
        stage = Stage(self._update, _figures, self._measure, log)
        return stage.run(updates, ending, SkippedUpdates(max_skipped, REMEDY))

    def _update(self, pairs: Sequence[ReferredPair]) -> Mapping[str, Any]:
        batches = self._pack([pair.samples for pair in pairs])
        logp_PA, reference_PA = self._logp(batches), _reference(pairs)
        terms = pair_terms(logp_PA, reference_PA, self._hp.beta)
        weighted = [_weighted(batch, terms.weight_PA) for batch in batches]
        sums = self._trainer.prefer(weighted, loss_denominator=float(len(pairs)))
        reward_A = self._hp.beta * (logp_PA - reference_PA).mean(axis=0)
        return {
            **sums,
            "loss": terms.loss_P.mean(),
            ACCURACY: (terms.margin_P > 0).mean(),
            MARGIN: terms.margin_P.mean(),
            "chosen_reward": reward_A[CHOSEN],
            "rejected_reward": reward_A[REJECTED],
        }

    def _measure(self) -> dict[str, float]:
        """Returns the loss on what is held out, the mean over the sets in their ratios, and the
        figures of each set."""
        figures: dict[str, float] = {}
        losses = []
        for name, ratio, pairs in zip(self._names, self._ratios, self._held_out, strict=True):
            if not pairs:
                continue
            logp_PA = np.concatenate(
                [self._logp(self._pack([p.samples for p in some])) for some in self._parts(pairs)]
            )
            terms = pair_terms(logp_PA, _reference(pairs), self._hp.beta)
            loss = float(terms.loss_P.mean())
            losses.append((ratio, loss))
            figures[f"{HELD_OUT_LOSS}/{name}"] = loss
            figures[f"held_out_{ACCURACY}/{name}"] = float((terms.margin_P > 0).mean())
            figures[f"held_out_{MARGIN}/{name}"] = float(terms.margin_P.mean())
        if losses:
            whole = sum(ratio for ratio, _ in losses)
            figures[HELD_OUT_LOSS] = sum(ratio * loss for ratio, loss in losses) / whole
        return figures

    def _parts(self, pairs: Sequence[Any]) -> Iterator[Sequence[Any]]:
        size = self._hp.pairs_per_step
        return (pairs[first : first + size] for first in range(0, len(pairs), size))

    def _pack(self, pairs: Sequence[SamplePair]) -> list[Batch]:
        """Batches in which a token's group is its pair, and its member the answer."""
        samples = [
            dataclasses.replace(sample, group=p, member=a)
            for p, answers in enumerate(pairs)
            for a, sample in enumerate(answers)
        ]
        return pack_all(samples, self._shape)

    def _logp(self, batches: Sequence[Batch]) -> np.ndarray:
        """The log-probabilities of the answers in such batches, float64 [P, 2]."""
        count = 1 + max(int(batch.group_BT.max()) for batch in batches)
        logp_PA = np.zeros((count, 2))
        for batch, logp_BT in zip(batches, self._trainer.present_logp(batches), strict=True):
            learned_BT = batch.chunk_BT >= 0
            places = batch.group_BT[learned_BT], batch.member_BT[learned_BT]
            np.add.at(logp_PA, places, logp_BT[learned_BT])
        return logp_PA


def _reference(pairs: Sequence[ReferredPair]) -> np.ndarray:
    return np.stack([pair.reference_A for pair in pairs])


def _weighted(batch: Batch, weight_PA: np.ndarray) -> Batch:
    """The batch with the weight of its answer on each token that is learned."""
    weight_BT = weight_PA[batch.group_BT, batch.member_BT].astype(np.float32)
    return dataclasses.replace(batch, advantage_BT=np.where(batch.chunk_BT >= 0, weight_BT, 0.0))


def _figures(sums: Mapping[str, Any]) -> dict[str, float]:
    names = ("loss", ACCURACY, MARGIN, "chosen_reward", "rejected_reward", "grad_norm")
    return {name: float(sums[name]) for name in names}
