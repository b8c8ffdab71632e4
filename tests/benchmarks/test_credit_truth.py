"""What a chunk was worth, and how well credit agrees with it; the recorded measurement is whole."""

from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from ale_jax.configs import smoke
from ale_jax.files import read_json
from ale_jax.learn.state import init_state, make_optimizer
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from ale_jax.model.weights.shape import policy_shape
from ale_jax.records import EpisodeKey, Task
from ale_jax.system.checks import checked_config
from benchmarks.credit_truth import __main__ as program
from benchmarks.credit_truth import player, statistics
from benchmarks.credit_truth.__main__ import OUT, Plan
from benchmarks.credit_truth.assigned import by_chunk
from benchmarks.credit_truth.player import continuation
from tests.data.make_trajectories import make_trajectory, make_turn

pytestmark = pytest.mark.slow

AXES = ("data", "fsdp", "expert", "tensor", "context")
AUTO = (AxisType.Auto,) * len(AXES)


def attempt(worth, credit, reward=0.0, decided=None):
    """An attempt whose interval excludes 0 on the decided chunks, by default on all."""
    worth_C = np.array(worth)
    away_C = np.ones(len(worth)) if decided is None else np.array(decided, float)
    edge_C = worth_C * 0.5 * away_C - (1 - away_C)
    low_C, high_C = (
        np.minimum(edge_C, worth_C),
        np.where(away_C > 0, np.maximum(edge_C, worth_C), 1),
    )
    every = {"test": np.array(credit, float)}
    return statistics.Attempt(0, "test", reward, worth_C, worth_C, low_C, high_C, every)


def test_the_worth_of_a_chunk_is_the_change_of_the_chance_and_the_last_leads_to_the_reward():
    record = {"group": 3, "family": "lane", "reward": 1.0, "successes": [50, 100, 20], "credit": {}}
    found = statistics.attempt(record, 200)
    np.testing.assert_allclose(found.chance_C, [0.25, 0.5, 0.1])
    np.testing.assert_allclose(found.worth_C, [0.25, -0.4, 0.9])
    assert list(found.decided_C) == [True, True, True]
    # The end is certain, so that the interval is that of the chance before it, 14.9 to 6.6 %.
    np.testing.assert_allclose([found.low_C[2], found.high_C[2]], [0.851, 0.934], atol=1e-3)


def test_the_interval_of_a_difference_is_newcombes():
    # Newcombe 1998, table II, (a) method 10: 56/70 and 48/80, difference 0.2, 0.0524 to 0.3339.
    before, after = (48, 80), (56, 70)
    rates = [(w / n, *statistics.wilson_interval(w, n)) for w, n in (before, after)]
    np.testing.assert_allclose(statistics.difference(*rates), [0.2, 0.0524, 0.3339], atol=1e-4)


def test_ranks_of_equal_values_are_shared():
    # Ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4: covariance 1.125, deviations sqrt(1.125) and sqrt(1.25).
    found = statistics.rank_correlation(np.array([0.0, 5, 5, 9]), np.array([1.0, 2, 3, 4]))
    assert found == pytest.approx(1.125 / np.sqrt(1.125 * 1.25))
    assert statistics.rank_correlation(np.ones(3), np.arange(3.0)) == 0.0


def test_within_leaves_out_attempts_in_which_nothing_was_decided():
    right = attempt([0.1, 0.2, 0.3], [1, 2, 3], reward=1.0)
    wrong = attempt([0.1, 0.2, 0.3], [3, 2, 1], decided=[0, 0, 0])
    assert statistics.within([right, wrong], "test") == pytest.approx(1.0)
    assert statistics.over_all([right, wrong], "test") == pytest.approx(0.0)


def test_signs_are_compared_where_the_worth_is_not_0():
    some = attempt([0.1, -0.2, 0.3], [1, 1, -1], decided=[1, 1, 0])
    assert statistics.same_sign([some], "test") == 0.5
    assert statistics.same_sign([attempt([0.1], [0.0])], "test") == 0.0  # none is not the right one


def test_blame_is_shared_by_chunks_of_equal_credit():
    found = attempt([0.1, -0.5, -0.1], [0, -2, -1])
    missed = attempt([0.1, -0.5, -0.1], [0, -1, -2])
    shared = attempt([0.1, -0.5, -0.1, 0.0], [-1, -1, -1, -1])
    won = attempt([-0.5, 0.9], [1, 2], reward=1.0)
    assert statistics.blame([found, missed, shared, won], "test") == pytest.approx(1.25 / 3)


def test_an_interval_is_drawn_from_the_attempts():
    same = [attempt([0.1, 0.2], [1, 2])] * 5
    assert statistics.bootstrap(statistics.over_all, same, "test", 20) == pytest.approx((1, 1))
    mixed = [attempt([0.1], [1]), attempt([0.1], [-1])] * 10
    low, high = statistics.bootstrap(statistics.same_sign, mixed, "test", 500)
    assert 0.2 <= low < 0.4 and 0.6 < high <= 0.8  # 20 tosses of a coin: 0.5 +- 0.22


def test_credit_of_a_chunk_is_the_mean_over_its_tokens():
    batch = SimpleNamespace(
        chunk_BT=np.array([[-1, 0, 0, -1, 1, 2]]),
        group_BT=np.array([[0, 0, 0, 0, 0, 1]]),
        member_BT=np.array([[4, 4, 4, 4, 4, 2]]),
        advantage_BT=np.array([[9.0, 1.0, 3.0, 9.0, 5.0, 7.0]]),
    )
    found = by_chunk([batch])
    assert found.keys() == {(0, 4), (1, 2)}
    np.testing.assert_array_equal(found[0, 4], [2.0, 5.0])
    np.testing.assert_array_equal(found[1, 2], [7.0])


def test_an_attempt_goes_on_after_its_first_turns():
    turns = [make_turn([1, 2], [3]), make_turn([4], [5]), make_turn([6], [7])]
    trajectory = make_trajectory(0, 0, turns)
    task = Task("lane", 1, "eval")
    request = continuation(EpisodeKey("truth", 9, 1, task, 2), trajectory)
    assert [t.action_ids.tolist() for t in request.prefix_turns] == [[3], [5]]
    assert len(request.prefix.seen) == 3 and len(request.prefix.actions) == 2
    assert continuation(EpisodeKey("truth", 9, 1, task, 0), trajectory).prefix is None


def test_attempts_are_measured_and_credited_also_where_all_outcomes_are_equal(monkeypatch):
    values = smoke.get_config()
    values.worlds.update(train=({"world": "countdown", "families": ("countdown3",)},), held_out=())
    values.update(agent={"turns": 1}, eval={"held_out_tasks": 0})
    config = checked_config(values.to_dict())
    words = [{"role": "user", "content": "What is 1 + 2? The answer is 3."}] * 10
    tokenizer = ChatTokenizer(train_bpe(words, config.tokenizer.vocab_size))
    policy = policy_shape(config, tokenizer.vocab_size)
    optimizer = make_optimizer(config.rl_optimizer, policy)
    one = jax.make_mesh((1,) * len(AXES), AXES, axis_types=AUTO, devices=jax.devices()[:1])
    for module in (program, player):
        monkeypatch.setattr(module, "make_mesh", lambda _: one)  # rows are few
    state = init_state(jax.random.key(0), policy, optimizer, one)
    # The world has no sandboxes.
    monkeypatch.setattr(player, "pick_runtime", lambda *_: SimpleNamespace(start=pytest.fail))
    plan = Plan(1, members=2, rollouts=3, critic_groups=1, critic_passes=1, critic_update=1)
    newest = SimpleNamespace(state=state, tokenizer=tokenizer)
    found = program.measure(config, newest, plan, need_both=False)
    # The weights are random, and solve nothing; both attempts begin in the same state.
    assert found["states"] == 1
    for each in found["trajectories"]:
        assert each["reward"] == 0.0 and each["successes"] == [0]
        assert each["credit"].keys() >= {"ipa", "grpo", "gigpo", "step", "attention", "gae 0.95"}
        assert each["credit"]["ipa"] == each["credit"]["attention"] == [0.0]


def test_the_recorded_measurement_is_large_enough_and_whole():
    found = read_json(Path(__file__).parents[2] / OUT)
    assert found["rollouts"] >= 200 and len(found["trajectories"]) >= 30
    states = set()
    for each in found["trajectories"]:
        chunks = len(each["wrote"])
        assert {len(each[name]) for name in ("saw", "tokens", "successes")} == {chunks}
        assert {len(credit_C) for credit_C in each["credit"].values()} == {chunks}
        for k, won in enumerate(each["successes"]):
            states.add((each["group"], *each["wrote"][:k], won))
    # One count for each state: had an attempt another for the same state, there would be more.
    assert len(states) == found["states"]
