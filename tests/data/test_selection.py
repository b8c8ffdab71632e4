"""What is chosen comes back to where it was, and costs no more than it has to."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ale_jax.data.selection import select_segments

SEGMENTS = [
    np.array([[1, 1, 1, 2, 2, 0], [1, 1, 2, 2, 2, 2]]),
    np.array([[1, 1, 1, 1, 1, 0], [1, 2, 2, 0, 0, 0]]),
]
VALUES = [np.arange(12).reshape(2, 6), 100 + np.arange(12).reshape(2, 6)]


def _wanted(*places):
    wanted = [np.zeros((2, 6), bool) for _ in SEGMENTS]
    for z, b, t in places:
        wanted[z][b, t] = True
    return wanted


def test_segments_with_a_wanted_token_are_packed_anew_longest_first():
    # Of batch 0: row 0's first (3 tokens) and row 1's second (4); of batch 1: row 1's second (2).
    chosen = select_segments(SEGMENTS, _wanted((0, 0, 1), (0, 1, 5), (1, 1, 1), (1, 1, 2)), 3)
    (segment_BT,) = chosen.segments()
    np.testing.assert_array_equal(segment_BT, [[1, 1, 1, 1, 2, 2], [1, 1, 1, 0, 0, 0]])
    (value_BT,) = chosen.take(VALUES, padding=-1)
    np.testing.assert_array_equal(value_BT, [[8, 9, 10, 11, 107, 108], [0, 1, 2, -1, -1, -1]])


def test_no_row_gets_more_segments_than_it_may_have():
    chosen = select_segments(SEGMENTS, _wanted((0, 0, 3), (1, 1, 1), (1, 1, 0)), 1)
    # 2, 2 and 1 tokens, one per row: three rows, so two batches.
    assert chosen.batches == 2 and chosen.shape == (2, 6)
    assert [s.max(axis=1).tolist() for s in chosen.segments()] == [[1, 1], [1, 0]]


def test_nothing_wanted_is_nothing_to_do():
    chosen = select_segments(SEGMENTS, _wanted(), 3)
    assert chosen.moves == () and chosen.batches == 0 and chosen.take(VALUES) == []


def test_padding_is_never_chosen():
    assert select_segments(SEGMENTS, _wanted((0, 0, 5)), 3).moves == ()


def test_what_is_put_back_lies_where_it_was():
    chosen = select_segments(SEGMENTS, _wanted((0, 1, 0), (1, 0, 0)), 3)
    taken = [-array for array in chosen.take(VALUES)]
    back = chosen.put_back(taken, VALUES)
    expected = [VALUES[0].copy(), VALUES[1].copy()]
    expected[0][1, :2] *= -1
    expected[1][0, :5] *= -1
    for found, wanted, old in zip(back, expected, VALUES, strict=True):
        np.testing.assert_array_equal(found, wanted)
        assert (old >= 0).all()  # the old arrays are as they were


@given(st.lists(st.lists(st.integers(1, 9), max_size=6), min_size=1, max_size=6), st.data())
def test_every_wanted_segment_lies_whole_in_one_row(lengths, data):
    """Whatever rows there were: lengths of the segments of each, as far as they fit 20 tokens."""
    segment_BT = np.zeros((len(lengths), 20), np.int32)
    for b, row in enumerate(lengths):
        numbers = np.repeat(np.arange(1, len(row) + 1), row)[:20]
        segment_BT[b, : len(numbers)] = numbers
    wanted_BT = np.array(data.draw(st.lists(st.booleans(), min_size=20, max_size=20)))
    wanted_BT = np.broadcast_to(wanted_BT, segment_BT.shape)
    chosen = select_segments([segment_BT], [wanted_BT], 4)
    places = np.arange(1, segment_BT.size + 1).reshape(segment_BT.shape)
    found = chosen.take([places])
    pairs = {(b, s) for b, s in zip(*np.nonzero(segment_BT * wanted_BT), strict=True)}
    pairs = {(b, int(segment_BT[b, t])) for b, t in pairs}
    taken = [place for place_BT in found for place in place_BT.ravel() if place]
    expected = [p for b, s in pairs for p in places[b][segment_BT[b] == s]]
    assert sorted(taken) == sorted(expected)
    for numbers_BT, place_BT in zip(chosen.segments(), found, strict=True):
        assert numbers_BT.max(initial=0) <= 4
        for row, place_T in zip(numbers_BT, place_BT, strict=True):
            for number in range(1, row.max(initial=0) + 1):
                whole = place_T[row == number]
                assert len(whole) and (np.diff(whole) == 1).all()
