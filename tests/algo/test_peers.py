"""GiGPO and HGPO by states, against the papers' formulas written out, and their limits."""

import dataclasses

import numpy as np
import pytest

from ale_jax.config.algo import AdvantageHypers
from ale_jax.data.replay import Group
from tests.algo.groups_of_histories import credit, member, random_groups
from tests.rows import each_row

GAMMA = 0.9
EPSILON = 1e-6
OUTCOMES = (0.0, 0.3, 1.0)
GIGPO = AdvantageHypers("gigpo", "group", "none", anchor_weight=2.0)


def normalised(values, std):
    above = np.array(values) - np.mean(values)
    spread = np.std(values)
    return above / (spread + EPSILON) if std == "group" and spread > 0 else above


def of_the_paper(groups, depths, std, weight, exponent):
    """Of each chunk of each valid trajectory: A^E + weight * sum_k w_k A^S_k, where A^S_k compares
    its discounted return with those of all steps of the group after the same last k observations.
    """
    found = {}
    for group in groups:
        episodes = normalised([t.episode.reward for t in group.valid], std)
        steps = []  # (member, chunk, what it saw, return)
        for trajectory in group.valid:
            seen = [turn.prompt_text for turn in trajectory.turns]
            for c in range(len(seen)):
                discounted = GAMMA ** (len(seen) - 1 - c) * trajectory.episode.reward
                steps.append((trajectory.episode.key.member, c, seen[: c + 1], discounted))
        parts = {(m, c): [] for m, c, _, _ in steps}
        for k in depths:
            clusters = {}
            for m, c, seen, discounted in steps:
                if len(seen) >= k:
                    clusters.setdefault(tuple(seen[-k:]), []).append((m, c, discounted))
            for cluster in clusters.values():
                if len(cluster) > 1:
                    scores = normalised([discounted for *_, discounted in cluster], std)
                    for (m, c, _), score in zip(cluster, scores, strict=True):
                        parts[m, c].append((k**exponent, score))
        for trajectory, episode in zip(group.valid, episodes, strict=True):
            key = trajectory.episode.key
            for c in range(len(trajectory.turns)):
                total = sum(w for w, _ in parts[key.member, c])
                step = sum(w * score for w, score in parts[key.member, c]) / max(total, 1e-12)
                found[key.group, key.member, c] = episode + weight * step
    return found


def assert_equal(advantage_NC, groups, expected):
    rows = [t for group in groups for t in group.members]
    found = {}
    for n, trajectory in enumerate(rows):
        key = trajectory.episode.key
        written = len(trajectory.turns) if trajectory in groups[key.group].valid else 0
        assert not advantage_NC[n, written:].any()
        for c in range(written):
            found[key.group, key.member, c] = advantage_NC[n, c]
    assert found.keys() == expected.keys()
    np.testing.assert_allclose(
        [found[place] for place in expected], list(expected.values()), atol=1e-5
    )


@each_row("std, seed", [(std, seed) for std in ("none", "group") for seed in (0, 1, 2)])
def test_gigpo_compares_all_steps_after_the_same_observations(std, seed):
    groups = random_groups(seed, outcomes=OUTCOMES)
    for depth in (0, 1, 2):  # 0: all observations so far
        hp = dataclasses.replace(GIGPO, std=std, anchor_depth=depth)
        expected = of_the_paper(groups, [depth], std, 2.0, 0.0)
        assert_equal(credit(groups, hp, GAMMA), groups, expected)


@each_row("std, exponent", [("none", 1.0), ("group", 1.0), ("none", 0.0), ("none", 2.5)])
def test_hgpo_is_the_papers_formula(std, exponent):
    groups = random_groups(3, outcomes=OUTCOMES)
    depths = {"anchor_weight": 2.0, "anchor_depth": 3, "anchor_exponent": exponent}
    hp = AdvantageHypers("hgpo", "group", std, **depths)
    expected = of_the_paper(groups, [1, 2, 3], std, 2.0, exponent)
    assert_equal(credit(groups, hp, GAMMA), groups, expected)


@pytest.mark.parametrize("std", ["none", "group"])
def test_hgpo_of_depth_one_is_gigpo_to_the_last_bit(std):
    groups = random_groups(4, outcomes=OUTCOMES)
    gigpo = dataclasses.replace(GIGPO, std=std, anchor_depth=1)
    for exponent in (0.0, 1.0, 3.0):
        hgpo = dataclasses.replace(gigpo, estimator="hgpo", anchor_exponent=exponent)
        np.testing.assert_array_equal(credit(groups, hgpo, GAMMA), credit(groups, gigpo, GAMMA))


def test_a_state_may_come_again_and_at_other_times():
    """One trajectory is in b twice, the other once and later: three steps with one baseline."""
    group = Group(0, (member(0, 0, "abb", 1.0), member(0, 1, "acb", 0.0)))
    hp = dataclasses.replace(GIGPO, anchor_depth=1, anchor_weight=1.0)
    found = credit([group], hp, 0.5)
    # Returns 1/4 1/2 1 and 0 0 0. Of a: mean 1/8. Of b: 1/2, 1 and 0, mean 1/2. c is alone.
    step = np.array([[1 / 8, 0, 1 / 2], [-1 / 8, 0, -1 / 2]])
    np.testing.assert_allclose(found[:, :3], np.array([[0.5], [-0.5]]) + step, atol=1e-6)


def test_groups_are_not_compared_with_one_another():
    one, other = member(0, 0, "ab", 1.0), member(1, 0, "ab", 0.0)
    for hp in (
        dataclasses.replace(GIGPO, anchor_depth=1),
        dataclasses.replace(GIGPO, estimator="hgpo", anchor_depth=2),
    ):
        assert not credit([Group(0, (one,)), Group(1, (other,))], hp).any()


@pytest.mark.heavy
def test_where_no_state_comes_again_depth_is_the_history():
    """Each column has observations of its own, and a member with the same last one has the same
    before it: the last observation then tells the whole history."""
    histories = [("t", "x1", "x2"), ("t", "x1", "y2"), ("t", "x1", "x2"), ("t", "z1", "z2")]
    members = [member(0, n, seen, float(n % 2)) for n, seen in enumerate(histories)]
    group = Group(0, tuple(members))
    expected = credit([group], GIGPO, 0.5)
    assert np.ptp(expected[0, :3]) > 0.1
    found = credit([group], dataclasses.replace(GIGPO, anchor_depth=1), 0.5)
    np.testing.assert_allclose(found, expected, atol=1e-6)
