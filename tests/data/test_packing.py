import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ale_jax.config.learn import Shape
from ale_jax.data import packing
from ale_jax.data.packing import Sample, demonstration, pack, pack_all
from tests.data.make_trajectories import make_turn


def make_sample(*turns, advantage=None):
    """turns: (prompt ids, action ids) pairs."""
    made = tuple(make_turn(p, a, version=i) for i, (p, a) in enumerate(turns))
    advantage = range(1, len(made) + 1) if advantage is None else advantage
    return Sample(made, np.array(list(advantage), np.float32))


def test_one_row_by_hand():
    long = make_sample(([1, 2], [3, 4]), ([5], [6]), advantage=[0.5, 0.25])
    changing = dataclasses.replace(long.turns[0], version=np.array([0, 1], np.int32))
    long = dataclasses.replace(long, turns=(changing, long.turns[1]))
    short = make_sample(([7], [8, 9]), advantage=[-1.0])
    reward_C = np.array([0.5], np.float32)
    short = dataclasses.replace(short, group=3, member=1, reward_C=reward_C)
    batch, leftover = pack(
        [short, long], Shape(microbatch_rows=1, pack_length=10, chunks_per_pack=4)
    )
    assert leftover == []
    expected = {
        "tokens_BT": [[1, 2, 3, 4, 5, 6, 7, 8, 9, 0]],
        "segment_BT": [[1, 1, 1, 1, 1, 1, 2, 2, 2, 0]],
        "position_BT": [[0, 1, 2, 3, 4, 5, 0, 1, 2, 0]],
        "chunk_BT": [[-1, -1, 0, 0, -1, 1, -1, 2, 2, -1]],
        "version_BT": [[0, 0, 0, 1, 0, 1, 0, 0, 0, 0]],
        "group_BT": [[0, 0, 0, 0, 0, 0, 3, 3, 3, -1]],
        "member_BT": [[0, 0, 0, 0, 0, 0, 1, 1, 1, -1]],
        "advantage_BT": [[0, 0, 0.5, 0.5, 0, 0.25, 0, -1.0, -1.0, 0]],
        "reward_BT": [[0, 0, 0, 0, 0, 0, 0, 0, 0.5, 0]],
        "imitate_BT": [[0] * 10],
    }
    for name, value in expected.items():
        np.testing.assert_array_equal(getattr(batch, name), value, err_msg=name)
    mu_BT = [[0, 0, -0.03, -0.04, 0, -0.06, 0, -0.08, -0.09, 0]]
    np.testing.assert_allclose(batch.logp_mu_BT, mu_BT, rtol=1e-6)
    np.testing.assert_allclose(batch.logp_old_BT, np.array(mu_BT) / 2, rtol=1e-6)


def test_text_turns_are_read_and_not_learned_from_but_by_imitation():
    turns = [make_turn([1], [2, 3], reward=9.0), make_turn([4], [5]), make_turn([6], [7], 2.0)]
    given = Sample(
        tuple(turns),
        np.array([0.5], np.float32),
        num_prefix_turns=2,
        imitate_P=np.array([0.25, 0.0], np.float32),
    )
    batch, _ = pack([given], Shape(microbatch_rows=1, pack_length=8, chunks_per_pack=1))
    np.testing.assert_array_equal(batch.tokens_BT, [[1, 2, 3, 4, 5, 6, 7, 0]])
    np.testing.assert_array_equal(batch.chunk_BT, [[-1, -1, -1, -1, -1, -1, 0, -1]])
    np.testing.assert_array_equal(batch.imitate_BT, [[0, 0.25, 0.25, 0, 0, 0, 0, 0]])
    np.testing.assert_array_equal(batch.advantage_BT, [[0, 0, 0, 0, 0, 0, 0.5, 0]])
    np.testing.assert_array_equal(batch.reward_BT, [[0, 0, 0, 0, 0, 0, 2.0, 0]])
    assert not batch.logp_old_BT[:, :6].any() and batch.logp_old_BT[0, 6] != 0


def test_what_is_imitated_alone_takes_the_room_of_one_chunk():
    """So that a row never has more trajectories than chunks_per_pack."""
    alone = Sample((make_turn([1], [2]),), np.zeros(0, np.float32), num_prefix_turns=1)
    batch, leftover = pack(
        [alone] * 3, Shape(microbatch_rows=1, pack_length=100, chunks_per_pack=2)
    )
    assert len(leftover) == 1 and batch.segment_BT.max() == 2 and (batch.chunk_BT == -1).all()


def test_recorded_experts_lie_beside_their_tokens():
    def recorded(number, *turns):
        sample = make_sample(*turns)
        expert_TLK = 10 * number + np.arange(sample.num_tokens)[:, None, None] * np.ones((1, 2, 1))
        return dataclasses.replace(sample, expert_TLK=expert_TLK.astype(np.int16))

    long, short = recorded(1, ([1, 2], [3, 4]), ([5], [6])), recorded(2, ([7], [8, 9]))
    batch, _ = pack([short, long, make_sample(([1], [2]))], Shape(1, 12, 4))
    assert (batch.expert_BTLK.shape, batch.expert_BTLK.dtype) == ((1, 12, 2, 1), np.int16)
    for layer in (0, 1):
        np.testing.assert_array_equal(
            batch.expert_BTLK[0, :, layer, 0], [10, 11, 12, 13, 14, 15, 20, 21, 22, -1, -1, -1]
        )


def test_first_fit_longest_first():
    def of_length(n):
        return make_sample(([n] * (n - 1), [n]))

    batch, leftover = pack([of_length(n) for n in (2, 6, 3, 5, 4)], Shape(2, 8, 4))
    np.testing.assert_array_equal(batch.tokens_BT, [[6] * 6 + [2] * 2, [5] * 5 + [3] * 3])
    assert [s.num_tokens for s in leftover] == [4]


def test_a_full_chunk_table_closes_a_row():
    two_chunks = make_sample(([1], [2]), ([3], [4]))
    batch, leftover = pack(
        [two_chunks] * 3, Shape(microbatch_rows=2, pack_length=100, chunks_per_pack=3)
    )
    assert len(leftover) == 1
    np.testing.assert_array_equal(batch.segment_BT.max(axis=1), [1, 1])


def test_nothing_to_pack_is_an_empty_batch():
    batch, leftover = pack([make_sample()], Shape(2, 4, 3))
    assert leftover == [] and not batch.segment_BT.any() and (batch.chunk_BT == -1).all()
    assert pack_all([make_sample()], Shape(2, 4, 3)) == []


def test_a_demonstration_is_learned_where_the_assistant_speaks():
    batch, _ = pack([demonstration([([1, 2], [3]), ([4], [5, 6])])], Shape(1, 8, 2))
    np.testing.assert_array_equal(batch.chunk_BT, [[-1, -1, 0, -1, 1, 1, -1, -1]])
    np.testing.assert_array_equal(batch.tokens_BT, [[1, 2, 3, 4, 5, 6, 0, 0]])
    assert (batch.advantage_BT == (batch.chunk_BT >= 0)).all() and not batch.logp_mu_BT.any()


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (make_sample(([1] * 6, [2] * 3)), r"fit a row of 8: set learn\.pack_length to 9 or more"),
        (make_sample(*[([1], [2])] * 4), r"fit 3 per row: set learn\.chunks_per_pack to 4 or more"),
        (make_sample(([], [2])), "give its first turn a prompt"),
    ],
)
def test_what_fits_no_row_is_refused_with_the_remedy(sample, message):
    with pytest.raises(ValueError, match=message):
        pack([sample], Shape(microbatch_rows=2, pack_length=8, chunks_per_pack=3))


def test_an_empty_shape_is_refused():
    with pytest.raises(ValueError, match="rows 0"):
        Shape(microbatch_rows=0, pack_length=8, chunks_per_pack=3)


lengths = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=3)


@settings(deadline=None)
@given(st.lists(lengths, max_size=12), st.integers(1, 3))
def test_no_token_is_lost_or_duplicated(all_lengths, rows):
    """Every token has its own id, so what comes out can be compared with what went in."""
    ids, samples = iter(range(1, 10**6)), []
    for turn_lengths in all_lengths:
        pairs = [
            ([next(ids) for _ in range(p)], [next(ids) for _ in range(a)]) for p, a in turn_lengths
        ]
        advantage = [float(action[0]) for _, action in pairs]  # names its chunk
        samples.append(make_sample(*pairs, advantage=advantage))
    shape = Shape(rows, pack_length=20, chunks_per_pack=5)
    batches = pack_all(samples, shape)

    found = []
    for batch in batches:
        assert batch.expert_BTLK is None  # nothing recorded, nothing carried
        by_token = dataclasses.replace(batch, read_BR=None)
        shapes = {array.shape for array in vars(by_token).values() if array is not None}
        assert shapes == {(rows, shape.pack_length)}
        for b in range(rows):
            found += read_row(batch, b)
    assert sorted(found) == sorted(
        [
            np.concatenate([[*t.prompt_ids, *t.action_ids] for t in s.turns]).tolist()
            for s in samples
        ]
    )
    again = pack_all(samples, shape)
    for one, two in zip(batches, again, strict=True):
        for field in dataclasses.fields(one):
            np.testing.assert_array_equal(getattr(one, field.name), getattr(two, field.name))


def read_row(batch, b):
    """The row's trajectories as token lists, checked against their chunks on the way."""
    segment_T, chunk_T, tokens_T = batch.segment_BT[b], batch.chunk_BT[b], batch.tokens_BT[b]
    used = np.unique(chunk_T[chunk_T >= 0])
    np.testing.assert_array_equal(used, np.arange(len(used)))
    for c in used:
        assert set(batch.advantage_BT[b][chunk_T == c]) == {tokens_T[chunk_T == c][0]}
        assert len(set(segment_T[chunk_T == c])) == 1
    policy_T = chunk_T >= 0
    assert not batch.advantage_BT[b][~policy_T].any()
    np.testing.assert_allclose(
        batch.logp_mu_BT[b], np.where(policy_T, -tokens_T / 100, 0), rtol=1e-6
    )
    assert not policy_T[batch.position_BT[b] == 0].any()
    found = []
    for segment in range(1, segment_T.max() + 1):
        inside = segment_T == segment
        np.testing.assert_array_equal(batch.position_BT[b][inside], np.arange(inside.sum()))
        found.append(tokens_T[inside].tolist())
    return found


def test_a_batch_looks_at_no_more_trajectories_once_its_rows_are_full(monkeypatch):
    looks = []
    has_room = packing._Row.has_room
    monkeypatch.setattr(
        packing._Row, "has_room", lambda row, sample: looks.append(row) or has_room(row, sample)
    )
    counts = []
    for trajectories in (32, 128):
        looks.clear()
        samples = [demonstration([([5], [3, 1])]) for _ in range(trajectories)]
        assert len(pack_all(samples, Shape(4, 3, 1))) == trajectories // 4
        counts.append(len(looks))
    assert counts[1] < 4.5 * counts[0]
