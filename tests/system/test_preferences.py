"""Learning from pairs: the loss and gradient of the formula, and a policy that comes to prefer."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ale_jax.config.learn import LearnConfig
from ale_jax.config.preferences import PreferencesConfig
from ale_jax.config.recorded import PreferenceData
from ale_jax.config.run import RunConfig
from ale_jax.data.packing import demonstration
from ale_jax.learn.scores import make_logp
from ale_jax.learn.state import begin
from ale_jax.learn.step import ModelSpec
from ale_jax.model.params import init_params
from ale_jax.model.sharding import param_shardings
from ale_jax.recorded.pair_sets import PairSet
from ale_jax.system.preferences import Preferences, count_updates, make_preference_step
from tests.model.alone import logp_after
from tests.model.meshes import mesh_of
from tests.model.shapes import MOE

BETA = 0.3
ROWS = 8  # of a batch


class Direct:
    """A trainer's programs, and the weights that they change."""

    def __init__(self, params, optimizer, **mesh_sizes):
        mesh = mesh_of(**mesh_sizes)
        placed = jax.device_put(params, param_shardings(MOE, mesh))
        self.state = begin(placed, optimizer, mesh)
        self._step = make_preference_step(ModelSpec(MOE, mesh), optimizer)
        self._logp = make_logp(MOE, mesh)

    def present_logp(self, batches):
        return [self._logp(self.state.params, batch) for batch in batches]

    def prefer(self, batches, *, loss_denominator):
        self.state, sums, _ = self._step(self.state, batches, loss_denominator)
        return sums


def drawn_pairs(count, seed=0):
    """Pairs of two replies each, the first with other ids than the second, after one prompt."""
    rng = np.random.default_rng(seed)

    def draw(low, high, size):
        return rng.integers(low, high, size).astype(np.int32)

    def answer(prompt_ids, low):
        more = (draw(4, 96, 2), draw(low, low + 8, 2))
        return demonstration([(prompt_ids, draw(low, low + 8, rng.integers(1, 5))), more])

    prompts = [draw(4, 96, rng.integers(2, 6)) for _ in range(count)]
    return [(answer(prompt_ids, 4), answer(prompt_ids, 50)) for prompt_ids in prompts]


def preferences(trainer, learned, held_out=(), rows=ROWS, **config):
    data = PreferenceData(name="made", files="made.jsonl")
    hp = PreferencesConfig(data=(data,), beta=BETA, **config)
    whole = RunConfig(preferences=hp, learn=LearnConfig(rows, 32, 8))
    used = len(learned), len(held_out)
    sets = [PairSet(tuple(learned), tuple(held_out), used, {}, data)]
    return Preferences(whole, sets, trainer, lambda done: None), count_updates(hp, sets)


def answer_logp(params, sample):
    """That of all tokens of both replies, straight from the logits."""
    ids = np.concatenate([x for t in sample.turns for x in (t.prompt_ids, t.action_ids)])
    written = np.concatenate(
        [x for t in sample.turns for x in (0 * t.prompt_ids, 0 * t.action_ids + 1)]
    )
    places = np.flatnonzero(written)
    return logp_after(params, ids)[places - 1, ids[places]].sum()


def formula(params, reference, pairs):
    """The mean over pairs of -log sigmoid of the margin, written down from the paper."""
    losses = []
    for chosen, rejected in pairs:
        ratios = [
            answer_logp(params, each) - answer_logp(reference, each) for each in (chosen, rejected)
        ]
        losses.append(-jax.nn.log_sigmoid(BETA * (ratios[0] - ratios[1])))
    return jnp.stack(losses).mean()


def weights(seed):
    return init_params(jax.random.key(seed), MOE)


@pytest.mark.heavy
def test_loss_and_gradient_are_those_of_the_formula():
    reference = weights(0)
    params = jax.tree.map(lambda one, other: 0.5 * one + 0.5 * other, reference, weights(1))
    pairs = drawn_pairs(3)  # more than one batch holds
    trainer = Direct(reference, optax.sgd(1.0))
    learning, updates = preferences(trainer, pairs, rows=2, pairs_per_step=3)
    trainer.state = dataclasses.replace(trainer.state, params=params)
    logged = {}
    learning.learn(learning.updates(), lambda step, figures: logged.update(figures), 3)
    loss, gradient = jax.value_and_grad(formula)(params, reference, pairs)
    assert updates == 1 and abs(float(loss) - np.log(2)) > 0.05
    np.testing.assert_allclose(logged["loss"], loss, rtol=1e-4)
    found = jax.tree.map(lambda old, new: old - new, params, trainer.state.params)
    largest = max(float(abs(leaf).max()) for leaf in jax.tree.leaves(gradient))
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, atol=2e-4 * largest),
        *(found, gradient),
    )


@pytest.mark.heavy
def test_it_comes_to_prefer_what_it_was_not_shown():
    pairs = drawn_pairs(24, seed=1)
    trainer = Direct(weights(0), optax.adam(3e-3), data=ROWS)
    more = {"pairs_per_step": 8, "epochs": 4, "measure_every": 4, "patience": 3}
    learning, updates = preferences(trainer, pairs[:16], pairs[16:], held_out_share=0.3, **more)
    logged = []
    why = learning.learn(learning.updates(), lambda *line: logged.append(line), 3)
    assert updates == 8 and why == "epochs 4 are over after 8 updates"
    (_, first), (_, last) = logged
    assert last["held_out_loss"] < first["held_out_loss"] < np.log(2)
    assert last["held_out_accuracy/made"] > 0.8
    assert last["accuracy"] == 1.0 and last["margin"] > 0.5
    assert last["chosen_reward"] - last["rejected_reward"] == pytest.approx(last["margin"])


def test_each_pair_is_in_one_update_of_an_epoch():
    class Silent:
        """A trainer of which all answers have the log-probability of their number of tokens."""

        def present_logp(self, batches):
            return [-np.ones(batch.chunk_BT.shape, np.float32) for batch in batches]

    pairs = drawn_pairs(10)
    learning, updates = preferences(Silent(), pairs, pairs_per_step=4, epochs=2)
    made = list(learning.updates())
    assert [len(some) for some in made] == [4] * updates and updates == 5
    seen = [id(each.samples) for some in made for each in some]
    assert sorted(seen[:10]) == sorted(seen[10:]) == sorted(map(id, pairs))
    for each in made[0]:
        counts = [sum(len(turn.action_ids) for turn in sample.turns) for sample in each.samples]
        assert each.reference_A.tolist() == [-count for count in counts]
