"""A run's folder, opened for analysis."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from ale_jax.monitor.trajectories import ChunkTokens, TrajectorySample, TurnSample
from ale_jax.status import Status
from ale_jax.system.recorded_run import RecordedRun, sample_of

RECORDED = Path(__file__).parents[2] / "notebooks" / "recorded"


@pytest.fixture
def recorded(tmp_path):
    """A copy: reading its weights claims the folder."""
    return shutil.copytree(RECORDED, tmp_path / "recorded")


def test_a_run_is_read_with_its_groups_and_its_newest_weights(recorded):
    run = RecordedRun.open(recorded)
    assert (run.config.name, len(run.steps), run.steps[-1]["step"]) == ("recorded", 60, 60)
    assert [group[0].step for group in run.groups] == list(range(5, 61, 5))
    assert {len(group) for group in run.groups} == {4}
    assert all(len({(t.family, t.item) for t in group}) == 1 for group in run.groups)
    assert run.newest.step == 60
    assert run.params["embed_VD"].shape == (run.policy.vocab_size, run.policy.width)
    (batch,) = run.packed(run.groups[0])
    assert sorted(set(batch.member_BT[batch.chunk_BT >= 0])) == [0, 1, 2, 3]


def test_without_tokens_there_is_nothing_to_study(recorded):
    (recorded / "trajectories.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"trajectories\.jsonl holds no trajectory to study"):
        RecordedRun.open(recorded)


def _turn(ids, advantages, reward=0.0):
    numbers = tuple(float(i) for i in ids)
    each = ChunkTokens(
        prompt_ids=(9, 8),
        action_ids=tuple(ids),
        logp_mu=numbers,
        logp_old=numbers,
        logp=numbers,
        version=(3,) * len(ids),
        advantage=tuple(advantages),
        credit=numbers,
    )
    return TurnSample("read", "wrote", 0.0, True, len(ids), 0.0, 1.0, 0.0, reward, each)


def test_a_sample_has_the_credit_and_reward_of_its_own_chunks():
    turns = (_turn([1], [7.0]), _turn([2, 3], [1.0, 2.0], 0.25), _turn([4], [-1.0], 0.5))
    recorded = TrajectorySample(
        5, "log", 1, Status.FINISHED, 0.75, False, 3, 4, turns, num_prefix_turns=1
    )
    sample = sample_of(recorded, member=2)
    assert (sample.member, sample.num_prefix_turns) == (2, 1)
    np.testing.assert_array_equal(sample.advantage_C, np.float32([1.5, -1.0]))
    assert [turn.reward for turn in sample.turns] == [0.0, 0.25, 0.5]
    np.testing.assert_array_equal(sample.turns[1].action_ids, [2, 3])
    np.testing.assert_array_equal(sample.turns[1].version, [3, 3])
    assert (sample.turns[0].prompt_text, sample.turns[0].action_text) == ("read", "wrote")
