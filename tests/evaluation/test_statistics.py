"""What one evaluation says. Each figure is worked out by hand."""

import dataclasses

import pytest

from ale_jax.evaluation.intervals import mean, rate
from ale_jax.evaluation.statistics import MAX_VALUES, breakdown, summarize
from tests.evaluation.results import episode, result


def test_an_episode_is_counted_once_and_a_missing_verdict_is_no_wrong_answer():
    found = summarize(result("a", ["11", "0T", "1?", "??"]).episodes)
    assert (found.items, found.samples, found.episodes) == (4, 2, 8)
    assert (found.solved, found.wrong, found.truncated, found.no_verdict) == (3, 1, 1, 3)
    # Items of 2 of 2, 0 of 2 and 1 of 1; the fourth was never judged.
    assert found.pass_at_k[1] == rate([1.0, 0.0, 1.0])
    assert found.pass_if_lost == ((1 + 0 + 0.5 + 0) / 4, (1 + 0 + 1 + 1) / 4)
    assert found.reward == mean([1.0, 0.0, 1.0])
    assert found.turns == 1 and found.seconds == 0.5 and found.policy_tokens == 12


def test_items_with_more_samples_weigh_no_more():
    found = summarize(result("a", ["1111", "0"]).episodes)
    assert found.pass_at_k[1].value == found.reward.value == 0.5


def test_pass_at_k_and_avg_at_n_leave_out_items_with_fewer_verdicts():
    found = summarize(result("a", ["1000", "1100", "0000", "1???"]).episodes)
    assert list(found.pass_at_k) == [1, 2, 4]
    # 1 - C(3, 2) / C(4, 2), 1 - C(2, 2) / C(4, 2), 0.
    assert found.pass_at_k[2] == rate([1 / 2, 5 / 6, 0.0])
    assert found.pass_at_k[4] == rate([1.0, 1.0, 0.0])
    assert found.avg_at_n == rate([0.25, 0.5, 0.0])
    assert found.pass_at_k[1] == rate([0.25, 0.5, 0.0, 1.0])


def test_without_any_verdict_there_is_no_rate():
    found = summarize(result("a", ["?", "?"]).episodes)
    assert (found.pass_at_k, found.avg_at_n, found.reward, found.rewards) == ({}, None, None, {})
    assert (found.no_verdict, found.pass_if_lost) == (2, (0.0, 1.0))


def test_named_rewards_are_means_over_the_episodes_that_have_them():
    its = [
        episode(0, 0, "1", rewards={"form": 0.5}),
        episode(0, 1, "1", rewards={"form": 1.0, "tests": 0.25}),
        episode(1, 0, "0", rewards={"form": 0.0}),
        episode(2, 0, "?"),
    ]
    assert summarize(its).rewards == {"form": mean([0.75, 0.0]), "tests": mean([0.25])}


def test_groups_are_worlds_families_and_columns_with_few_values():
    its = [
        *result("a", ["1", "0"]).episodes,
        *result("a", ["0"], family="hard", metadata={"level": 2, "family": "x"}).episodes,
        *result("a", ["1"], world="mail", metadata={}).episodes,
    ]
    found = breakdown(its)
    assert {column: list(values) for column, values in found.items()} == {
        "world": ["mail", "sums"],
        "family": ["mail/easy", "sums/easy", "sums/hard"],
        "metadata.level": ["1", "2"],
        "metadata.family": ["x"],
    }
    assert found["family"]["sums/easy"].pass_at_k[1].value == 0.5
    assert found["world"]["sums"].episodes == 3
    assert found["metadata.level"]["2"].wrong == 1


def test_a_column_that_names_items_is_no_group():
    its = [dataclasses.replace(episode(n, 0, "1"), metadata={"id": n}) for n in range(30)]
    assert "metadata.id" in breakdown(its[:MAX_VALUES])
    assert "metadata.id" not in breakdown(its[: MAX_VALUES + 1])


def test_a_junk_reward_solves_nothing():
    found = summarize([episode(n, 0, "0", reward=0.01) for n in range(50)])
    assert found.pass_at_k[1].value == 0.0 and found.reward.value == pytest.approx(0.01)
