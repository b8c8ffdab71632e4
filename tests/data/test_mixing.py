"""Domains keep their proportions in every prefix, and a sample depends on its position alone."""

import itertools

import numpy as np

from ale_jax.data.mixing import mix, mixing_order, place
from tests.rows import each_row


@each_row(
    "ratios, order",
    [
        ((1,), (0,)),
        ((1, 1), (0, 1)),
        # Second of domain 0 may come from 3/2 = 1 on and must before 3; so must the first of 1.
        ((2, 1), (0, 0, 1)),
        # Deadlines: 0 by 2, 3 (its second not before 1), 4; 1 by 4. At 1, 0's second is due first.
        ((3, 1), (0, 0, 0, 1)),
        # 0 may come at 0, 2 (5/2) and must by 3, 5; 1 (ratio 3) at 0, 1, 3 and by 2, 4, 5.
        ((2, 3), (1, 0, 1, 0, 1)),
    ],
)
def test_the_order_by_hand(ratios, order):
    assert mixing_order(ratios) == order


@each_row("ratios", [(70, 15, 15), (1, 1), (3, 2, 7, 1), (1, 99), (5, 5, 5, 5, 3)])
def test_every_prefix_has_its_proportions_to_less_than_one_sample(ratios):
    counts, total = np.zeros(len(ratios)), sum(ratios)
    for position in range(3 * total):
        domain, number = place(position, ratios)
        assert number == counts[domain]
        counts[domain] += 1
        shares = (position + 1) * np.array(ratios) / total
        assert np.abs(counts - shares).max() < 1, position
    np.testing.assert_array_equal(counts, 3 * np.array(ratios))


def test_each_pool_is_gone_through_before_it_comes_again():
    pools = ["abcdefg", "XYZ"]
    drawn = "".join(itertools.islice(mix(pools, (2, 1), seed=3), 63))
    for pool, size, count in (("abcdefg", 7, 42), ("XYZ", 3, 21)):
        mine = [c for c in drawn if c in pool]
        assert len(mine) == count
        assert all(set(mine[i : i + size]) == set(pool) for i in range(0, count, size))
    assert drawn != "".join(itertools.islice(mix(pools, (2, 1), seed=4), 63))
    assert drawn == "".join(itertools.islice(mix(pools, (2, 1), seed=3), 63))


def test_a_lone_pool_has_the_order_of_seed_and_epoch():
    drawn = list(itertools.islice(mix([range(10)], (1,), seed=5), 20))
    epochs = [np.random.default_rng([5, epoch]).permutation(10) for epoch in (0, 1)]
    np.testing.assert_array_equal(drawn, np.concatenate(epochs))
