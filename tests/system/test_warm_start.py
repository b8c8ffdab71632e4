"""The warm start: what it is fed, and the number that stops it."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from ale_jax.config.hardware import MeshShape
from ale_jax.config.learn import Shape
from ale_jax.config.worlds import WarmStartConfig
from ale_jax.data.mixing import mix
from ale_jax.data.packing import demonstration, pack_all
from ale_jax.errors import RunFailed
from ale_jax.learn.finite import BROKEN, SKIPPED
from ale_jax.learn.step import ModelSpec
from ale_jax.model.params import init_params
from ale_jax.model.sharding import make_mesh
from ale_jax.system.warm_start import full_rows, make_probability, warm_start
from tests.model.alone import logp_after
from tests.model.shapes import MOE

SHAPE = Shape(microbatch_rows=8, pack_length=32, chunks_per_pack=8)


def _samples(count):
    rng = np.random.default_rng(0)

    def draw(low, high):
        return rng.integers(4, 96, rng.integers(low, high)).astype(np.int32)

    return [demonstration([(draw(2, 5), draw(1, 3)) for _ in range(2)]) for _ in range(count)]


def _probability(params, sample):
    """That of all policy tokens of one sample, alone and straight from the logits."""
    ids = np.concatenate([x for t in sample.turns for x in (t.prompt_ids, t.action_ids)])
    written = np.concatenate(
        [x for t in sample.turns for x in (0 * t.prompt_ids, 0 * t.action_ids + 1)]
    )
    logp_TV = np.asarray(logp_after(params, ids))
    return np.exp(sum(logp_TV[i - 1, ids[i]] for i in np.flatnonzero(written)))


@pytest.mark.heavy
def test_the_probe_is_the_mean_probability_of_whole_transcripts():
    samples = _samples(40)  # more than one batch holds
    params = jax.tree.map(lambda w: 0.1 * w, init_params(jax.random.key(0), MOE))
    probability = make_probability(ModelSpec(MOE, make_mesh(MeshShape(data=8))), SHAPE)
    found = sum(probability(params, batch) for batch in pack_all(samples, SHAPE)) / len(samples)
    expected = np.mean([_probability(params, sample) for sample in samples])
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_batches_are_full_and_no_sample_is_forgotten():
    samples = _samples(50)
    seen = np.zeros(50, int)
    first_ids = {tuple(s.turns[0].prompt_ids): i for i, s in enumerate(samples)}
    updates = full_rows(mix([samples], (1,), seed=1), SHAPE.microbatch_rows, SHAPE)
    for (batch,) in itertools.islice(updates, 40):
        assert (batch.segment_BT > 0).mean() > 0.85
        for b, t in zip(*np.nonzero((batch.position_BT == 0) & (batch.segment_BT > 0))):
            prompt = batch.tokens_BT[b, t : t + 4]
            (i,) = (i for ids, i in first_ids.items() if tuple(prompt[: len(ids)]) == ids)
            seen[i] += 1
    waiting = (seen.max() - seen) @ np.array([s.num_tokens for s in samples])
    assert waiting <= 2 * SHAPE.microbatch_rows * SHAPE.pack_length + sum(
        s.num_tokens for s in samples
    )


def rows_of(seed, shape):
    """The rows of five updates of eight rows each."""
    updates = itertools.islice(full_rows(mix([_samples(50)], (1,), seed), 8, shape), 5)
    return np.concatenate([batch.tokens_BT for batches in updates for batch in batches])


def test_the_rows_of_a_microbatch_change_no_update():
    halves = dataclasses.replace(SHAPE, microbatch_rows=4)
    np.testing.assert_array_equal(rows_of(1, SHAPE), rows_of(1, halves))
    batches = next(
        full_rows(mix([_samples(50)], (1,), 1), 8, dataclasses.replace(SHAPE, microbatch_rows=5))
    )
    assert [(b.segment_BT > 0).any(axis=1).sum() for b in batches] == [5, 3]


def test_the_order_is_the_seeds():
    def tokens(seed):
        return rows_of(seed, SHAPE)

    np.testing.assert_array_equal(tokens(1), tokens(1))
    assert (tokens(1) != tokens(2)).any()


class Counting:
    """A trainer whose updates are all alike, and what each of them was told."""

    def __init__(self):
        self.told = []

    def supervise(self, batches, *, loss_denominator):
        self.told.append((len(batches), loss_denominator))
        return {"nll": 6.0, "tokens": 4.0, "best": 3.0, "grad_norm": 2.0, SKIPPED: np.False_}


def test_it_ends_at_the_probe_that_reaches_the_target():
    config = WarmStartConfig(max_steps=9, probe_every=2, target_success=0.5)
    samples, probes = _samples(3), iter([0.2, 0.5, 0.9])
    trainer, logged, batches = Counting(), [], itertools.repeat(pack_all(samples, SHAPE) * 3)
    why = warm_start(
        *(trainer, batches, lambda: {"probe_success": next(probes)}, config),
        *(lambda *x: logged.append(x), 3),
    )
    assert why == "target_success 0.5 is reached after 4 updates"
    tokens = 3 * sum(len(turn.action_ids) for sample in samples for turn in sample.turns)
    assert trainer.told == [(3, tokens)] * 4
    assert [step for step, _ in logged] == [2, 4]
    figures = {"loss": 1.5, "token_accuracy": 0.75, "grad_norm": 2.0, "probe_success": 0.5}
    assert logged[-1][1] == figures


class Skipping:
    """A trainer of whose updates none is applied."""

    def supervise(self, batches, *, loss_denominator):
        figures = {"nll": np.nan, "tokens": 1.0, "best": 0.0, "grad_norm": np.nan}
        return figures | {SKIPPED: np.True_, BROKEN: np.False_}


def test_updates_after_the_last_probe_are_looked_at_and_logged_before_they_end_the_run():
    config = WarmStartConfig(max_steps=3, probe_every=4, target_success=0.35)
    batches, logged = itertools.repeat(pack_all(_samples(3), SHAPE)), []
    with pytest.raises(RunFailed, match=r"step 3: 3 updates in a row .* warm_start_optimizer"):
        warm_start(Skipping(), batches, dict, config, lambda *x: logged.append(x), 3)
    ((step, figures),) = logged
    assert step == 3 and np.isnan(figures["loss"])


def supervised(updates, measured, **config):
    """Trains with these updates and figures; returns why it ended."""
    config = WarmStartConfig(max_steps=9, probe_every=1, **config)
    figures = iter(measured)
    return warm_start(
        *(Counting(), iter(updates), lambda: next(figures), config),
        *(lambda *x: None, 3),
    )


def test_it_ends_when_the_loss_on_what_is_held_out_has_not_fallen_for_long_enough():
    batches = [pack_all(_samples(3), SHAPE)] * 10
    losses = [{"held_out_loss": loss} for loss in (3.0, 2.0, 2.5, 1.9, 1.9, 2.0, 1.0)]
    why = supervised(batches, losses, patience=2)
    assert why == "held_out_loss has not fallen below 1.9000 for 2 times after 6 updates"
    assert supervised(batches, losses * 2) == "max_steps 9 is reached"


def test_it_ends_with_the_last_update_and_measures_there():
    batches, measured = [pack_all(_samples(3), SHAPE)] * 4, [{}] * 4
    assert supervised(batches, measured, epochs=2) == "epochs 2 are over after 4 updates"
