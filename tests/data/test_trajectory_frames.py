"""Frames of trajectories: every bit comes back, or nothing does."""

import dataclasses
import io

import numpy as np
import pytest

from ale_jax.config.engine import Sampling
from ale_jax.data import trajectory_frames
from ale_jax.data.packing import text_turn
from ale_jax.data.trajectory_frames import DamagedFrame, encode_frame, read_frames
from ale_jax.records import (
    FORCED,
    FREE,
    MAX_CUT_MASKS,
    MAX_MASKS,
    CallCounts,
    ReplyKind,
    SideBranch,
)
from ale_jax.status import Status
from tests.data.make_trajectories import make_trajectory, make_turn

PLAIN = make_trajectory(3, 1, [make_turn([1, 2], [3], version=4)], start_version=4)


def full():
    """A trajectory in which every field is set, with numbers that text would change."""
    turn = make_turn([5], [6, 7, 8], reward=0.1 + 0.2, version=2)
    logp = np.array([-0.0, np.nan, -np.float32(1) / 3], np.float32)
    turn = dataclasses.replace(
        turn, logp_mu=logp, version=np.array([2, 2, 3], np.int32), action_text="\ud800\x00é"
    )
    turn = dataclasses.replace(turn, mask_id=np.array([1, FORCED, FREE], np.int16))
    turn = dataclasses.replace(turn, kind=ReplyKind.CUT, number=7)
    made = make_trajectory(9, 0, [text_turn([1, 2], [3], "look", "ls"), turn], start_version=2)
    key = dataclasses.replace(made.episode.key, num_prefix_turns=1)
    episode = dataclasses.replace(
        made.episode,
        key=key,
        status=Status.TURN_LIMIT,
        reward=0.25,
        detail="at the limit",
        step_rewards=(0.1, 0.2),
        rewards=(("format", 0.1), ("tests", 0.5)),
        told=(("user", "go", False), ("assistant", "é", True)),
    )
    episode = dataclasses.replace(episode, cut_replies=(0,))
    return dataclasses.replace(
        made,
        episode=episode,
        num_prefix_turns=1,
        calls=CallCounts(
            forks=4, edited=3, lost=2, left_out=1, unseen=("image", "tool web_search")
        ),
        expert_TLK=np.arange(7 * 2 * 3, dtype=np.int16).reshape(7, 2, 3) - 1,
        rejected=(Status.SANDBOX_LOST, Status.REPLAY_DIVERGED),
        side_branches=(
            SideBranch((made.turns[0], make_turn([9], [8, 7], version=3)), num_prefix_turns=1),
            SideBranch(
                (make_turn([4, 4], [1], reward=0.5, version=2),),
                expert_TLK=np.arange(3 * 2 * 3, dtype=np.int16).reshape(3, 2, 3),
            ),
        ),
        mask_Iw=np.array([[1, 1 << 31], [1 << 6, 0]], np.uint32).view(np.int32),
        sampling=Sampling(temperature=0.7),
    )


def with_masks(mask_id, **fields):
    turn = dataclasses.replace(full().turns[1], mask_id=np.array(mask_id, np.int16))
    return dataclasses.replace(full(), turns=(full().turns[0], turn), **fields)


def read(content):
    return list(read_frames(io.BytesIO(content)))


def assert_same(found, wanted):
    if isinstance(wanted, np.ndarray):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert found.tobytes() == wanted.tobytes() and found.flags.writeable
    elif dataclasses.is_dataclass(wanted):
        assert type(found) is type(wanted)
        for field in dataclasses.fields(wanted):
            assert_same(getattr(found, field.name), getattr(wanted, field.name))
    elif isinstance(wanted, tuple):
        assert type(found) is tuple and len(found) == len(wanted)
        for pair in zip(found, wanted):
            assert_same(*pair)
    else:
        assert type(found) is type(wanted) and found == wanted


def test_every_bit_comes_back():
    never_wrote = make_trajectory(0, 0, status=Status.NO_VERDICT, reward=0.0)
    episode = dataclasses.replace(never_wrote.episode, cut_replies=None)
    never_wrote = dataclasses.replace(never_wrote, episode=episode)
    only_forced = with_masks([FORCED, FORCED, FREE], mask_Iw=np.zeros((0, 2), np.int32))
    wanted = [full(), PLAIN, never_wrote, only_forced]
    assert_same(tuple(read(b"".join(map(encode_frame, wanted)))), tuple(wanted))


def test_a_last_frame_that_was_cut_off_is_left_out():
    whole = encode_frame(PLAIN)
    for length in range(len(whole)):
        (found,) = read(whole + whole[:length])
        assert_same(found, PLAIN)


def test_no_flipped_bit_goes_unnoticed():
    whole = encode_frame(PLAIN)
    for position in range(len(whole)):
        damaged = bytearray(whole + whole)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(DamagedFrame):
            read(damaged)


def test_a_frame_with_a_checksum_is_not_believed_for_that(monkeypatch):
    """Written with tables of other arrays than those that the reader expects."""
    for name, dtype in (("version", "<f4"), ("prompt_ids", "|O"), ("action_ids", "<i8")):
        arrays = trajectory_frames._TURN_ARRAYS | {name: dtype}
        turn = make_turn([1], [2])
        turn = dataclasses.replace(turn, **{name: getattr(turn, name).astype(dtype)})
        with monkeypatch.context() as patch:
            patch.setattr(trajectory_frames, "_TURN_ARRAYS", arrays)
            frame = encode_frame(make_trajectory(0, 0, [turn]))
        with pytest.raises(DamagedFrame, match="not a trajectory"):
            read(frame)


@pytest.mark.parametrize(
    "wrong",
    [
        dataclasses.replace(full(), num_prefix_turns=3),
        dataclasses.replace(full(), expert_TLK=np.zeros((6, 2, 3), np.int16)),
        dataclasses.replace(PLAIN, episode=dataclasses.replace(PLAIN.episode, reward=None)),
        make_trajectory(
            0, 0, [dataclasses.replace(make_turn([1], [2]), logp_mu=np.zeros(2, "f4"))]
        ),
        with_masks([1, FORCED]),
        with_masks([2, FORCED, FREE]),
        with_masks([1, FORCED - 1, FREE]),
        with_masks([1, FORCED, FREE], mask_Iw=None),
        with_masks([FORCED, FORCED, FREE], mask_Iw=None),
        with_masks([0, FORCED, FREE]),  # which does not allow token 6
        with_masks([1, FORCED, FREE], mask_Iw=np.ones((2, 0), np.int32)),
        with_masks([1, FORCED, FREE], mask_Iw=np.full((MAX_MASKS + 1, 2), -1, np.int32)),
        with_masks(
            [1, FORCED, FREE],
            mask_Iw=np.full((MAX_CUT_MASKS + 1, 2), -1, np.int32),
            sampling=Sampling(top_k=2),
        ),
        with_masks([1, FORCED, FREE], mask_Iw=np.full((2,), -1, np.int32)),
    ],
)
def test_fields_that_do_not_fit_each_other_are_damage(wrong):
    with pytest.raises(DamagedFrame, match="not a trajectory"):
        read(encode_frame(wrong))


def test_a_cut_trajectory_has_more_masks_and_a_sampling_that_is_none_is_damage():
    many = np.full((MAX_MASKS + 1, 2), -1, np.int32)
    cut = with_masks([MAX_MASKS, FORCED, FREE], mask_Iw=many, sampling=Sampling(top_k=2))
    assert_same(tuple(read(encode_frame(cut))), (cut,))
    none = Sampling()
    object.__setattr__(none, "temperature", -1.0)
    with pytest.raises(DamagedFrame, match=r"temperature -1\.0 must be at least 0"):
        read(encode_frame(dataclasses.replace(PLAIN, sampling=none)))


def test_a_branch_has_experts_or_none_and_a_turn_masks():
    """A number here must not make a table of that many arrays."""
    counts = {
        said: len(
            trajectory_frames._dtypes(
                {"turns": [["", "", 0.0, "action", 0, said]], "has_experts": said}
            )
        )
        for said in (False, True, 10**9)
    }
    assert counts == {False: 5, True: 7, 10**9: 7}


def test_what_would_not_be_read_is_not_written(monkeypatch):
    monkeypatch.setattr(trajectory_frames, "MAX_BODY_BYTES", len(encode_frame(PLAIN)) - 100)
    assert encode_frame(PLAIN) is None
