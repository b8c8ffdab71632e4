"""What a step was trained on comes back as it was."""

import pytest

from ale_jax.data.replay import Group
from ale_jax.data.step_files import read_step, recorded_steps, write_step
from ale_jax.data.trajectory_frames import DamagedFrame, encode_frame
from ale_jax.status import Status
from tests.data.make_trajectories import make_trajectory, make_turn


def group(index, *statuses):
    members = (
        make_trajectory(
            *(index, member, [make_turn([1], [member, 2])], status),
            reward=None if status is Status.SANDBOX_LOST else 1.0,
        )
        for member, status in enumerate(statuses)
    )
    return Group(index, tuple(members))


def test_groups_come_back_in_their_order_with_members_that_were_not_judged(tmp_path):
    groups = [group(7, Status.FINISHED, Status.SANDBOX_LOST), group(3, Status.TURN_LIMIT)]
    write_step(tmp_path, 1, groups)
    found = read_step(tmp_path, 1, used={3})
    assert [(each.index, each.is_reused) for each in found] == [(7, False), (3, True)]
    for written, read in zip(groups, found, strict=True):
        assert list(map(encode_frame, read.members)) == list(map(encode_frame, written.members))


def test_steps_count_as_far_as_they_follow_each_other(tmp_path):
    assert recorded_steps(tmp_path) == 0
    for step in (1, 2, 4):
        write_step(tmp_path, step, [group(step, Status.FINISHED)])
    assert recorded_steps(tmp_path) == 2


def test_a_step_that_is_made_again_replaces_its_file(tmp_path):
    for index in (5, 6):
        write_step(tmp_path, 1, [group(index, Status.FINISHED)])
    assert [each.index for each in read_step(tmp_path, 1)] == [6]


def test_damage_is_found(tmp_path):
    write_step(tmp_path, 1, [group(1, Status.FINISHED)])
    (file,) = tmp_path.iterdir()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(DamagedFrame, match="checksum"):
        read_step(tmp_path, 1)


def test_a_file_that_was_cut_off_is_found(tmp_path):
    write_step(tmp_path, 1, [group(1, Status.FINISHED, Status.FINISHED)])
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DamagedFrame, match="cut off"):
        read_step(tmp_path, 1)
