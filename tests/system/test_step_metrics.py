"""The metrics of a step, from trajectories and sums whose figures can be worked out by hand."""

import dataclasses
import math
import zlib
from types import SimpleNamespace

import numpy as np
import pytest

from ale_jax.data.replay import DroppedGroup, Group
from ale_jax.data.staleness import Drop
from ale_jax.records import Task
from ale_jax.status import Status
from ale_jax.system.step_metrics import StepReport, step_metrics
from ale_jax.system.tasks import Cursor
from tests.data.make_trajectories import make_trajectory, make_turn


def _trajectory(member, reward, family, start_version, **episode):
    made = make_trajectory(0, member, [make_turn([1], [2, 3])], reward=reward)
    key = dataclasses.replace(made.episode.key, task=Task(family, 0, "train"))
    changed = dataclasses.replace(made.episode, key=key, **episode)
    return dataclasses.replace(made, episode=changed, start_version=start_version)


TIMES = {"policy_seconds": 1.5, "env_seconds": 1.0, "verifier_seconds": 0.25}
GROUP = Group(
    0,
    (
        _trajectory(
            *(0, 1.0, "log", 6),
            turns=2,
            malformed_calls=1,
            rewards=(("tests", 0.25),),
            metrics=(("files", 3.0),),
            **TIMES,
        ),
        _trajectory(
            1, 0.0, "log", 5, status=Status.NO_VERDICT, turns=4, malformed_calls=0, **TIMES
        ),
        _trajectory(
            2, 0.5, "sort", 6, status=Status.TURN_LIMIT, turns=3, malformed_calls=2, **TIMES
        ),
        make_trajectory(0, 3, status=Status.SANDBOX_LOST, reward=None),
    ),
)
NO_RATIOS = np.zeros(4)
SUMS = {
    "tokens": np.float32(8),
    "loss": np.float32(0.5),
    "grad_norm": np.float32(2),
    "skipped_updates": np.True_,
    "balance": np.float32(1.5),
    "entropy": np.float32(12),
    "ratio": np.float32(9),
    "ratios": np.float32(6),
    "masked_chunks": np.float32(1),
    "masked_tokens": np.float32(2),
    "clipped_tokens": np.float32(4),
    "old_rollout_logp_diff": np.float32(0.8),
    "mismatch_kl": np.float32(0.4),
    "approx_kl": np.float32(1.6),
    "token_ratio_bins": NO_RATIOS,
    "chunk_ratio_bins": NO_RATIOS,
}
CURSOR = Cursor(
    step=7, episodes=40, policy_tokens=300, dropped_stale=4, dropped_failed=8, dropped_equal=12
)


def _metrics(*updates, **extra):
    made = SimpleNamespace(samples=["a", "b"])
    return step_metrics(StepReport(CURSOR, [GROUP], made, list(updates), extra, 0.1, 0.2))


def test_rollouts_are_those_with_a_valid_reward():
    found = _metrics()
    ids = np.array([1, 2, 3] * 3, np.int32)
    assert found == {
        "success": pytest.approx(1 / 3),
        "success/log": 0.5,
        "success/sort": 0.0,  # half of the reward is not solved
        "reward": 0.5,
        "reward/log": 0.5,
        "reward/log/tests": 0.25,  # of the one that earned any
        "metric/log/files": 3.0,
        "reward/sort": 0.5,
        "turns/log": 3.0,
        "turns/sort": 3.0,
        "time/episode_s/log": 1.0,
        "time/episode_s/sort": 1.0,
        "response_tokens/log": 2.0,
        "response_tokens/sort": 2.0,
        "limited/log": 0.0,
        "limited/sort": 1.0,
        "staleness_mean": pytest.approx(1 / 3),  # the step started with version 6
        "staleness_max": 1,
        "staleness_counts": {"0": 2, "1": 1},
        "tokens_crc32": zlib.crc32(ids.tobytes()),
        "turns": 3.0,
        "no_verdict": pytest.approx(1 / 3),
        "malformed_calls": 1.0,
        "reward_std": pytest.approx(math.sqrt(1 / 6)),
        "groups_solved": 0.0,
        "groups_failed": 0.0,
        "success_sampled": pytest.approx(1 / 3),
        "trained_groups/log": 1,
        "response_tokens": 2.0,
        "response_tokens_max": 2,
        "reply_tokens": 2.0,
        "entropy_sampled": pytest.approx(0.025),  # log-probabilities of -0.02 and -0.03
        "truncated": pytest.approx(1 / 3),
        "truncated/turn_limit": pytest.approx(1 / 3),
        "replies": 0.75,  # of four episodes, one of which the system lost
        "branches": 0.75,
        "forks": 0.0,
        "edits": 0.0,
        "lost_replies": 0.0,
        "left_out_tokens": 0.0,
        "replies_cut": 0.0,
        "replies_replaced": 0.0,
        "replies_side": 0.0,
        "branching": 0.0,
        "episodes": 40,
        "policy_tokens": 300,
        "trajectories_with_gradient": 2,
        "updates": 0,
        "updates_with_gradient": 0,
        "dropped_stale": 4,
        "dropped_failed": 8,
        "dropped_equal": 12,
        "time/waiting_s": 0.1,
        "time/learner_s": 0.2,
        "time/generation_s": 4.5,
        "time/environment_s": 2.25,  # without the verifier's quarter of a second
        "time/verifier_s": 0.75,
    }


def test_groups_that_were_dropped_since_the_step_before_are_seen():
    """What dynamic sampling left out was judged, too, and what became too old was of a family."""
    members = tuple(_trajectory(m, 1.0, "log", 6) for m in range(2))
    dropped = (
        DroppedGroup(1, Drop.EQUAL, members, "log"),
        DroppedGroup(2, Drop.STALE, members, "sort"),
        DroppedGroup(3, Drop.STALE, (), "sort"),
    )
    solved = Group(4, members)
    made = SimpleNamespace(samples=[])
    report = StepReport(CURSOR, [GROUP, solved], made, [], {}, 0.1, 0.2, dropped)
    found = step_metrics(report)
    assert found["success"] == pytest.approx(3 / 5)
    assert found["success_sampled"] == pytest.approx(5 / 7)
    assert (found["groups_solved"], found["groups_failed"]) == (0.5, 0.0)
    stale = {name: n for name, n in found.items() if name.startswith(("stale_", "trained_groups"))}
    assert stale == {"trained_groups/log": 2, "stale_groups/sort": 2}


def test_sums_become_means_over_tokens_or_ratios():
    found = _metrics(SUMS, weight_of_experts=0.5)
    expected = {
        "loss": 0.5,
        "grad_norm": 2.0,
        "skipped_updates": 1.0,
        "balance": 1.5,
        "entropy": 1.5,
        "ratio_mean": 1.5,
        "chunks_masked": 1.0,
        "masked_share": 0.25,
        "clipped_share": 0.5,
        "old_rollout_logp_diff": pytest.approx(0.1),
        "mismatch_kl": pytest.approx(0.05),
        "approx_kl": pytest.approx(0.2),
        "weight_of_experts": 0.5,
    }
    assert {name: value for name, value in found.items() if name not in _metrics()} == expected
    observed = {"observation_tokens": np.float32(20), "observation_nll": np.float32(5)}
    found = _metrics(SUMS | observed)
    assert (found["observation_tokens"], found["observation_loss"]) == (20.0, 0.25)
    none = dict.fromkeys(observed, np.float32(0))
    assert _metrics(SUMS | none)["observation_loss"] == 0.0


def test_a_step_without_tokens_divides_by_nothing():
    found = _metrics({name: np.zeros_like(value) for name, value in SUMS.items()})
    assert found["entropy"] == found["ratio_mean"] == found["masked_share"] == 0.0
