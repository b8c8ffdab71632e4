"""The laboratory learns by the trainer's own credit and losses, and knows success exactly."""

import dataclasses
import functools
import importlib
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.algo.values import FULL_TRUST
from ale_jax.config.learn import Shape
from ale_jax.configs.algorithms import PRESETS
from ale_jax.data.replay import Group
from ale_jax.files import read_json
from ale_jax.learn.learner import assemble
from ale_jax.learn.step import make_loss
from ale_jax.learn.token_credit import credit_by_critics, scale_advantages
from ale_jax.model.policy import TokenScores
from benchmarks.laboratory import golden, picture
from benchmarks.laboratory.comparison import paired
from benchmarks.laboratory.credit import advantages, arm, lay_out, token_values
from benchmarks.laboratory.regimes import WORLDS, regime_of
from benchmarks.laboratory.training import Protocol, batch_of, curves, loss_of
from benchmarks.laboratory.world import (
    Size,
    play,
    prior,
    regime,
    right_words,
    success,
    without_slow,
)
from tests.data.make_trajectories import make_trajectory, make_turn

pytestmark = pytest.mark.slow

SMALL = Size(tasks=2, stages=3, turns=5, tokens=2, words=3)
GROUPS, MEMBERS = 3, 4
# Some wrong words, second tries of unequal number, chunks shorter than their place, and a gap.
RETRIES = regime(SMALL, retries=True, right=(0.8, 0.5), gap=0.4)
SHORT = regime(SMALL, stages=2, tokens=1, right=(0.7, 0.6), gap=0.4)
CHUNKS_PER_ROW, ROWS, ROW_TOKENS = 12, 2, 64


@dataclasses.dataclass
class Setting:
    """logits: of the engine, of the weights that played, at the step's start, and now."""

    played: object
    rows: object
    then: jax.Array
    begin: jax.Array
    now: jax.Array


@functools.cache
def make_setting(name: str) -> Setting:
    world = {"retries": RETRIES, "short": SHORT}[name]
    keys = jax.random.split(jax.random.key(3), 4)
    word_MD = right_words(keys[0], SMALL)
    then = prior(word_MD, world, SMALL)
    begin = then + 0.3 * jax.random.normal(keys[1], then.shape)
    now = begin + 0.3 * jax.random.normal(keys[2], then.shape)
    task_N = jnp.repeat(jnp.arange(GROUPS) % SMALL.tasks, MEMBERS)
    played = play(keys[3], then, word_MD, world, task_N, SMALL)
    outcomes = np.asarray(played.outcome_N).reshape(GROUPS, MEMBERS).mean(1)
    assert ((outcomes > 0) & (outcomes < 1)).any(), "no group has anything to learn"
    return Setting(played, lay_out(played, MEMBERS, world, SMALL), then, begin, now)


def trainer_groups(setting: Setting, world, old) -> list[Group]:
    """The same episodes as the trainer's records. A token's id names its state and its word."""
    played = jax.tree.map(np.asarray, setting.played)
    engine, old = (np.asarray(jax.nn.log_softmax(x)) for x in (played.logits_MDLV, old))
    groups = []
    for group in range(GROUPS):
        members = []
        for member in range(MEMBERS):
            n = group * MEMBERS + member
            turns = []
            for c in range(played.live_NC[n].sum()):
                stage, words = played.stage_NC[n, c], played.tokens_NCL[n, c, : world.tokens]
                state = played.task_N[n], stage, np.arange(world.tokens), words
                failed = bool(world.retries and c and not played.right_NC[n, c - 1])
                ids = np.ravel_multi_index(state, engine.shape)
                turn = make_turn([0], ids)
                turns.append(
                    dataclasses.replace(
                        turn,
                        logp_mu=engine[state],
                        logp_old=old[state],
                        prompt_text=f"stage {stage}" + " again" * failed,
                        action_text=str(words),
                    )
                )
            reward = float(played.outcome_N[n])
            turns[-1] = dataclasses.replace(turns[-1], reward=reward)
            members.append(make_trajectory(group, member, turns, reward=reward))
        groups.append(Group(group, tuple(members)))
    return groups


def critics_values(batch, value_QMD2, setting: Setting) -> np.ndarray:
    """What the laboratory's tables say before each token of the trainer's batch, [Q, B, T]."""
    lost_NC = np.asarray(setting.played.lost_NC).astype(int)
    member_BT, chunk_BT = np.maximum(batch.member_BT, 0), batch.chunk_BT
    task_BT, stage_BT, _, _ = np.unravel_index(batch.tokens_BT, setting.then.shape)
    first = {}  # the first chunk of each trajectory in its row
    value_QBT = np.zeros((len(value_QMD2), *chunk_BT.shape), np.float32)
    for b, t in np.argwhere(chunk_BT >= 0):
        group, member = batch.group_BT[b, t], member_BT[b, t]
        begin = first.setdefault((group, member), chunk_BT[b, t])
        lost = lost_NC[group * MEMBERS + member, chunk_BT[b, t] - begin]
        value_QBT[:, b, t] = np.asarray(value_QMD2)[:, task_BT[b, t], stage_BT[b, t], lost]
    return value_QBT


def trainer_gradient(found, groups, setting: Setting, value_QMD2):
    """The gradient of the trainer's loss of the same episodes, with respect to all logits."""
    algo, shape = found.algo, Shape(ROWS, ROW_TOKENS, CHUNKS_PER_ROW)
    step = assemble(groups, algo, shape)
    batches = step.batches
    if found.count:
        values = [critics_values(batch, value_QMD2, setting) for batch in batches]
        scale = functools.partial(scale_advantages, tag_G=step.table.tag_G, hp=algo.advantage)
        batches, figures = credit_by_critics(batches, values, found, algo, scale)
        assert not algo.advantage.blends or 0.0 < figures["critic_explained_at_end"] < FULL_TRUST
    loss_fn = make_loss(algo, CHUNKS_PER_ROW)

    def table(logits_MDLV):
        return jax.nn.log_softmax(logits_MDLV)

    def total(logits_MDLV):
        logp_MDLV, loss = table(logits_MDLV), 0.0
        entropy_MDL = -(jnp.exp(logp_MDLV) * logp_MDLV).sum(-1)
        for batch in batches:
            arrays = {k: jnp.asarray(x) for k, x in vars(batch).items() if x is not None}
            at = arrays["tokens_BT"]
            begin_BT = table(setting.begin).reshape(-1)[at]
            arrays["logp_prox_BT"] = begin_BT
            if algo.old_logp == "step":
                arrays["logp_old_BT"] = begin_BT
            entropy_BT = entropy_MDL.reshape(-1)[at // SMALL.words]
            # The laboratory's policies predict no observations.
            logp_BT = jnp.where(arrays["chunk_BT"] >= 0, logp_MDLV.reshape(-1)[at], 0.0)
            scores = TokenScores(logp_BT, entropy_BT, jnp.zeros(logp_BT.shape, bool))
            loss += loss_fn(scores, arrays, step.minibatches[0].loss_denominator)[0]
        return loss

    return jax.grad(total)(setting.now)


@pytest.mark.parametrize("world", ["retries", "short"])
@pytest.mark.parametrize("preset", PRESETS)
def test_it_learns_what_the_trainer_would_learn(preset, world):
    found, setting = arm(preset), make_setting(world)
    about = {"retries": RETRIES, "short": SHORT}[world]
    sizes = found.count, SMALL.tasks, SMALL.stages, 2
    # Values that are lower after a wrong word, and so explain some of the outcomes.
    value_QMD2 = jax.random.uniform(jax.random.key(1), sizes).at[..., 1].multiply(0.6)
    played, rows = setting.played, setting.rows
    value_QNT = token_values(value_QMD2, played)
    credit = advantages(played, rows, value_QNT, found, about, GROUPS)
    batch = batch_of(played, rows, credit, (setting.then, setting.begin), found)
    ours = jax.grad(lambda logits: loss_of(logits, batch, played, found.algo))(setting.now)
    # The sampler records the engine's own log-probabilities.
    old = {"sampler": played.logits_MDLV, "generating": setting.then}
    groups = trainer_groups(setting, about, old.get(found.algo.old_logp, setting.begin))
    theirs = trainer_gradient(found, groups, setting, value_QMD2)
    assert np.abs(theirs).max() > 1e-4
    np.testing.assert_allclose(ours, theirs, atol=2e-6)


@pytest.mark.parametrize("name", WORLDS)
def test_success_is_what_many_episodes_show(name):
    size, key = Size(), jax.random.key(0)
    world = regime_of(name, size)
    word_MD = right_words(key, size)
    logits = prior(word_MD, world, size)
    task_N = jnp.arange(20_000) % size.tasks
    played = play(key, logits, word_MD, world, task_N, size)
    exact = float(success(logits, word_MD, world, size))
    assert 0.04 < exact < 0.2, "not as after a warm start"
    error = np.sqrt(exact * (1 - exact) / len(task_N))
    assert float(played.outcome_N.mean()) == pytest.approx(exact, abs=4 * error)


def test_runs_do_not_depend_on_how_many_there_are():
    size, protocol, world = Size(), Protocol("network", updates=2), regime_of("late", Size())
    few, many = (
        curves(np.arange(n), np.full(n, 0.1), world, arm("grpo"), size, protocol)[:9]
        for n in (9, 32)  # the first are not a multiple of the devices
    )
    np.testing.assert_allclose(few, many, atol=1e-5)
    np.testing.assert_allclose(few[:, 0], success_at_start(world, size), atol=1e-5)


def success_at_start(world, size):
    deciding = int(np.sum(world.decides_D))
    return np.mean(np.asarray(world.right_M) ** deciding)


def test_late_decisions_are_learned_by_ipa_and_early_ones_by_grpo():
    size, protocol, seeds = Size(), Protocol(updates=60), np.arange(16)

    def area_of(world, preset):
        found = curves(seeds, np.full(16, 1.0), world, arm(preset), size, protocol)
        return found.mean(1)

    late, early = regime_of("late", size, age=8), regime_of("early", size)
    for world, better, worse in ((late, "ipa", "grpo"), (early, "grpo", "ipa")):
        difference, error = paired(area_of(world, better), area_of(world, worse))
        assert difference > 4 * error, (better, difference, error)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: regime_of("lake", SMALL), "lake.*choose one of late"),
        (lambda: regime(SMALL, stages=4), r"stages 4 must be in \[1, 3\]"),
        (lambda: regime(SMALL, deciding=[3]), r"deciding 3 must be in \[0, 2\]"),
        (lambda: regime(SMALL, tokens=1, place=1), r"place 1 must be in \[0, 0\]"),
        (lambda: regime(SMALL, age=-1), r"age -1 must be in \[0, inf\]"),
        (lambda: regime(SMALL, uses=0), r"uses 0 must be in \[1, inf\]"),
        (lambda: regime(SMALL, epochs=0), r"epochs 0 must be in \[1, inf\]"),
        (lambda: regime(SMALL, gap=-0.5), r"gap -0.5 must be in \[0, inf\]"),
        (lambda: regime(SMALL, dropped=1.5), r"dropped 1.5 must be in \[0, 1\]"),
        (
            lambda: curves(
                np.arange(8), np.ones(8), regime(SMALL, age=9), arm("ipa"), SMALL, Protocol()
            ),
            "age 9 must be at most 8",
        ),
    ],
)
def test_a_world_that_does_not_fit_is_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_blind_critics_leave_a_blend_at_lambda_1():
    world = regime_of("early", Size(), age=2)
    seeds, rates = np.arange(8), np.full(8, 0.3)

    def learned(found, blind):
        protocol = Protocol("table", updates=6, blind=blind)
        return curves(seeds, rates, world, found, Size(), protocol)

    blended = arm("blended_topr")
    cautious = dataclasses.replace(arm("turn_topr"), lam=1.0)
    np.testing.assert_allclose(learned(blended, True), learned(cautious, True), atol=1e-6)
    assert not np.allclose(learned(blended, False), learned(cautious, False), atol=1e-3)


def test_epochs_are_uses_of_a_batch_unless_each_step_computes_pi_old():
    size, protocol, grpo = Size(), Protocol(updates=8), arm("grpo")
    renewed = dataclasses.replace(grpo, algo=dataclasses.replace(grpo.algo, old_logp="step"))

    def learned(preset, **changes):
        world = regime_of("lock", size, **changes)
        return curves(np.arange(8), np.full(8, 1.0), world, preset, size, protocol)

    epochs, uses = learned(grpo, epochs=3), learned(grpo, uses=3)
    np.testing.assert_allclose(epochs, uses, atol=1e-6)
    np.testing.assert_allclose(learned(renewed, epochs=3), epochs, atol=1e-6)
    assert not np.allclose(learned(renewed, uses=3), epochs, atol=1e-3), "its ratios begin at 1"


def test_groups_that_used_all_turns_are_dropped_as_often_as_the_world_says():
    setting = make_setting("retries")
    pairs, groups = 2, GROUPS * MEMBERS // 2
    slow_G = np.asarray(setting.played.live_NC.sum(1) == SMALL.turns).reshape(groups, pairs).any(1)
    assert 0 < slow_G.sum() < groups, "some are slow"
    for dropped, kept_G in ((0.0, np.ones(groups, bool)), (1.0, ~slow_G)):
        world = RETRIES._replace(dropped=jnp.float32(dropped))
        left = without_slow(jax.random.key(0), setting.played, pairs, world)
        kept_N = np.repeat(kept_G, pairs)
        np.testing.assert_array_equal(left.live_NC, setting.played.live_NC & kept_N[:, None])
    # The others are trained as before, and what is not trained on has no credit.
    rows = lay_out(left, pairs, world, SMALL)
    assert (np.asarray(rows.chunk_NT)[~kept_N] == -1).all()
    ipa = arm("ipa")
    credit = (
        advantages(played, lay_out(played, pairs, world, SMALL), None, ipa, world, groups)[0]
        for played in (left, setting.played)
    )
    found_NT, whole_NT = map(np.asarray, credit)
    np.testing.assert_array_equal(found_NT[kept_N], whole_NT[kept_N])
    assert np.isfinite(found_NT).all()


def test_no_cell_of_the_table_has_moved():
    moved = []
    assert golden.check(moved.append)["cells_moved"] == 0, moved


@pytest.fixture
def measured(monkeypatch):
    """What `add_part` has measured, row by row, without measuring it."""
    rows = []

    def row(regime, part):
        rows.append(regime)
        return {preset: {"area": part.policy} for preset in part.presets}

    monkeypatch.setattr(golden, "measure_row", row)
    small = lambda presets: {"late": dict.fromkeys(presets, 1.0)}  # noqa: E731
    monkeypatch.setattr(golden, "small_table", small)
    return rows


def test_a_part_of_the_table_is_added_to_what_is_there(measured, tmp_path):
    path = tmp_path / "laboratory.json"
    for part in (
        golden.Part("table", ("grpo", "turn_topr"), 64),
        golden.Part("network", ("ipa",), 64),
        golden.Part("table", ("ipa",), 64),
    ):
        golden.add_part(path, part, print)
    found = read_json(path)
    tables = found["tables"]
    assert tables["network"]["early"] == {"ipa": {"area": "network"}}
    in_order = ["ipa", "grpo", "turn_topr"]  # as in PRESETS
    assert list(tables["table"]["late"]) == list(found["small"]["late"]) == in_order
    with pytest.raises(ValueError, match="of 64 seeds: measure as many"):
        golden.add_part(path, golden.Part("table", ("ipa",), 8), print)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--table", "--seeds=32"], "is of 64 seeds: measure as many, or move it away\n"),
        (["--seeds=1"], "--seeds=1 must be at least 2: errors need as many\n"),
        (["--uses=0"], "uses 0 must be in [1, inf]\n"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_sentence(monkeypatch, capsys, arguments, said):
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))  # which the program would set
    program = importlib.import_module("benchmarks.laboratory.__main__")
    assert program.main(arguments) == 2
    assert said in capsys.readouterr().err


def test_an_interrupted_part_is_continued_and_a_complete_one_measured_again(measured, tmp_path):
    path, part = tmp_path / "laboratory.json", golden.Part("network", ("ipa",), 64)
    *_, last = golden.REGIMES

    def interrupt(said):
        if len(measured) == len(golden.REGIMES) - 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        golden.add_part(path, part, interrupt)
    measured.clear()
    golden.add_part(path, part, print)
    assert measured == [last]
    measured.clear()
    golden.add_part(path, part, print)
    assert measured == list(golden.REGIMES)


def test_the_picture_shows_what_is_beyond_its_error():
    def cell(difference, error):
        return {"area": 50.0, "area_difference": difference, "area_error": error}

    row = {"grpo": cell(0.0, 0.0), "ipa": cell(12.4, 1.0), "ppo": cell(-3.0, 2.0)}
    tables = {"table": {"late": row, "early": row}, "network": {"late": row}}
    figure = picture.draw({"reference": "grpo", "tables": tables})
    assert [len(axes.get_yticklabels()) for axes in figure.axes] == [2, 1]
    shown = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert shown == [["+12", "+12"], ["+12"]]
    assert figure.axes[0].get_yticklabels()[0].get_text() == "late (50 %)"


def test_a_picture_needs_a_table(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(picture, "FILE", tmp_path / "laboratory.json")
    picture.FILE.write_text('{"tables": {}}')
    with pytest.raises(SystemExit):
        picture.main([])
    assert "laboratory.json has no table yet" in capsys.readouterr().err
