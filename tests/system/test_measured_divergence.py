"""The divergence from the reference as a metric alone: its value, what it covers, and that it
changes nothing."""

import functools
import tempfile
from pathlib import Path

import jax
import numpy as np
import pytest

from ale_jax.data.journal import Journal
from ale_jax.learn.reference import REFERENCE, load_reference, save_reference
from ale_jax.model.policy import hidden_states, logits
from ale_jax.system.step_metrics import step_metrics
from ale_jax.system.tasks import Cursor
from ale_jax.system.trainer import TrainerFiles
from tests.system.in_process import Run, run_config

pytestmark = pytest.mark.heavy

LENGTH = 128  # no conversation is longer


def _nothing(*args, **fields):
    pass


def _train(folder, **loss):
    """A synchronous run of three steps; (the run, its first weights, its reports)."""
    game = Run(run_config(3, "grpo", algo={"loss": loss}, rl={"alpha": 0.0}))
    files, reports = TrainerFiles(), []
    files.trainer = game.trainer
    before = jax.device_get(game.trainer.begun.params)
    if game.config.algo.loss.reads_reference:  # as a run's controller does it
        save_reference(folder, REFERENCE, _nothing, files)
        load_reference(folder, REFERENCE, _nothing, files)
    with tempfile.TemporaryDirectory() as kept, Journal(Path(kept), _nothing) as journal:
        game.train(Cursor(), journal, reports.append, _nothing)
    files.close()
    return game, before, reports


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    return _train(tmp_path_factory.mktemp("measured"), measure_kl=True)


@functools.partial(jax.jit, static_argnames="shape")
def _logp(params, ids_BT, segment_BT, shape):
    """Log-probabilities of every next token, [T, V]."""
    hidden_BTD, _ = hidden_states(params, ids_BT, np.arange(LENGTH)[None], segment_BT, shape)
    return jax.nn.log_softmax(logits(params, hidden_BTD)[0])


def _log_ratios(trajectory, params, shape):
    """log mu - log ref of each token that the policy wrote, from the text's own logits."""
    ids, found, written = np.zeros((1, LENGTH), int), [], 0
    for turn in trajectory.turns:
        for new in (turn.prompt_ids, turn.action_ids):
            ids[0, written : written + len(new)] = new
            written += len(new)
        found += [(written - n, mu) for n, mu in zip(range(len(new), 0, -1), turn.logp_mu)]
    ref_TV = _logp(params, ids, (np.arange(LENGTH)[None] < written).astype(int), shape)
    return [mu - float(ref_TV[at - 1, ids[0, at]]) for at, mu in found]


def test_it_covers_all_that_was_sampled(measured):
    game, before, reports = measured
    found = [step_metrics(report)["kl"] for report in reports]
    few = [len(report.made.samples) < len(report.trajectories) for report in reports]
    assert any(few), "in some group all outcomes are equal, and nothing is trained on"
    for report, kl in zip(reports, found, strict=True):
        gaps = [_log_ratios(t, before, game.trainer.policy) for t in report.trajectories]
        assert kl == pytest.approx(np.mean(np.concatenate(gaps)), abs=1e-5)
    assert abs(found[0]) < 1e-5 < min(found[1:]), "the first step samples from the reference"


def test_a_run_that_does_not_ask_is_the_same_to_the_last_bit_and_has_no_reference(
    measured, tmp_path
):
    game, _, reports = measured
    plain, _, without = _train(tmp_path)
    assert not (tmp_path / REFERENCE).exists()
    for one, other in zip(without, reports, strict=True):
        assert "kl" not in step_metrics(one)
        jax.tree.map(np.testing.assert_array_equal, one.updates, other.updates)
    states = (jax.device_get(each.trainer.begun) for each in (plain, game))
    jax.tree.map(np.testing.assert_array_equal, *states)
