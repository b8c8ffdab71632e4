"""Shares of the mesh: where a conversation goes, and what one shard gives."""

import numpy as np
import pytest

from ale_jax.config.engine import Sampling
from ale_jax.engine.data_shard import Claims, DataShard, Demand, best_shard
from ale_jax.engine.dispatch import PrefillBatcher
from ale_jax.engine.pages import prefix_keys
from ale_jax.engine.request import Request, RequestOptions
from ale_jax.engine.sequence import PrefillChunk, SequenceState
from tests.engine.shapes import engine_shape

SIZES = engine_shape(
    pages=96, max_sequences=6, prefill_rows=2, prefill_budget=64
)  # 32 pages to a shard
GROUP = np.arange(41)  # five pages are full before the last id
OTHER = np.concatenate([GROUP[:17], np.arange(100, 124)])  # begins alike, by two pages


def _shares():
    return [DataShard(number, SIZES.shard(3)) for number in range(3)]


def _keys(ids):
    return prefix_keys(ids[:-1], SIZES.page_tokens, 0)


NOBODY = Claims({}, ())


def _demand(ids, pages=SIZES.pages_per_sequence, priority=0, number=0):
    options = RequestOptions(priority=priority)
    request = Request(number, ids, 60, Sampling(), np.zeros(2, np.uint32), options, number)
    return Demand(SequenceState(number, 96), request, pages, _keys(ids)[:pages])


def _join(shard, ids, cached=True, runs=True, **changes):
    """A conversation with a slot. cached: whether the shard has its prompt's pages. runs: whether
    it has a request in progress."""
    demand = _demand(ids, **changes)
    sequence, known = demand.sequence, shard.allocate(demand)
    sequence.prefix_keys = demand.keys
    shard.prefilling = None if cached else sequence
    if runs:
        sequence.begin(demand.request, SIZES.prefill_tokens)
    for page, key in zip(sequence.pages, _keys(ids) if cached else [], strict=False):
        shard.pages.register(page, key)
    return sequence, known


def _best(shards, ids, **changes):
    found = best_shard(shards, _demand(ids, number=9, **changes), NOBODY)
    return found and found[0]


def test_a_share_gives_its_own_slots_and_pages_alone():
    for number, shard in enumerate(_shares()):
        sequences = [_join(shard, ids)[0] for ids in (GROUP, OTHER)]
        assert [sequence.slot for sequence in sequences] == [2 * number, 2 * number + 1]
        assert sequences[0].pages[:2] == sequences[1].pages[:2]
        pages = {page for sequence in sequences for page in sequence.pages}
        assert len(pages) == 2 * SIZES.pages_per_sequence - 2 and pages <= set(range(32))
        assert shard.victims(_demand(GROUP, number=9), NOBODY) is None
        shard.release(sequences[0])
        assert shard.victims(_demand(GROUP, number=9), NOBODY) == []


def test_members_go_where_their_prompt_is_cached_until_it_is_full():
    shards = _shares()
    _join(shards[1], GROUP)
    assert _best(shards, GROUP) is shards[1]
    assert _join(shards[1], GROUP)[1] == 5
    assert _best(shards, GROUP) is shards[0]


def test_members_wait_for_their_prompt_others_go_where_nothing_is_prefilled():
    shards = _shares()
    _join(shards[1], GROUP, cached=False)
    assert _best(shards, GROUP) is shards[1]
    assert _best(shards, OTHER) is shards[0]
    shards[1].prefilling = None
    _join(shards[2], OTHER[:17])
    assert _best(shards, OTHER) is shards[2]


def test_strangers_go_where_most_pages_are_free():
    shards = _shares()
    for shard in shards[:2]:
        _join(shard, GROUP)
    assert _best(shards, np.arange(200, 230)) is shards[2]


def test_nobody_goes_where_too_few_pages_are_left():
    shards = [DataShard(0, engine_shape(max_sequences=4, pages=20))]
    _join(shards[0], GROUP)
    assert _best(shards, np.arange(200, 230)) is None  # 8 of 12 pages are left
    assert _best(shards, GROUP) is shards[0]  # 7 are new


def test_who_joins_leaves_a_page_to_each_that_may_need_one():
    shard = DataShard(0, engine_shape(max_sequences=4, pages=20))
    _join(shard, GROUP, pages=6)
    strangers = np.arange(200, 230)
    assert _best([shard], strangers, pages=13) is shard
    assert _best([shard], strangers, pages=14) is None
    _join(shard, np.arange(300, 309), runs=False, pages=1)
    assert _best([shard], strangers, pages=13) is shard, "who is idle has to give way"
    assert _best([shard], strangers, pages=14) is None


def test_who_joins_where_all_may_grow_looks_at_nobody(monkeypatch):
    """Otherwise hundreds that join at once look at each other, in quadratic time."""
    shard = DataShard(0, engine_shape(max_sequences=4, pages=20))
    _join(shard, GROUP, pages=6)
    looked = []
    monkeypatch.setattr(SequenceState, "may_grow", lambda *_: bool(looked.append(1)) or True)
    strangers = np.arange(200, 230)
    assert _best([shard], strangers, pages=13) is shard and not looked
    assert _best([shard], strangers, pages=14) is None and looked


def test_nobody_is_preempted_where_another_share_has_room():
    shards = _shares()
    for shard in shards[:2]:
        for _ in range(2):
            _join(shard, GROUP, runs=False)
    assert _best(shards, GROUP) is shards[2]
    for _ in range(2):
        _join(shards[2], GROUP)
    assert _best(shards, GROUP) in shards[:2]


def test_the_longest_idle_give_way_then_the_last_of_the_lowest_priority():
    shard = DataShard(0, engine_shape(max_sequences=6, pages=36))
    places = [
        _join(shard, np.arange(100 * n, 100 * n + 9), pages=6, runs=runs, priority=by, number=n)[0]
        for n, (runs, by) in enumerate([(True, 0), (False, 0), (True, 1), (True, 0), (False, 0)], 1)
    ]
    first, idle, urgent, second, longer_idle = places
    idle.idle_since, longer_idle.idle_since = 2.0, 1.0
    ids = np.arange(900, 909)

    def victims(pages, claims=NOBODY, **changes):
        return shard.victims(_demand(ids, pages, number=9, **changes), claims)

    # Six pages are free, of which the running ones are promised three.
    assert victims(3) == []
    assert victims(9) == [longer_idle]
    assert victims(15) == [longer_idle, idle]
    assert victims(16) is None, "those who came before keep their slots"
    assert victims(11, priority=1) == [longer_idle]  # a page is promised to the urgent one alone
    assert victims(23, priority=1) == [longer_idle, idle, second]
    assert victims(29, priority=1) == [longer_idle, idle, second, first]
    assert victims(30, priority=1) is None
    assert victims(36, priority=2) == [longer_idle, idle, second, first, urgent]
    # Who has a request that waits is not idle, and who is prefilled in this dispatch stays.
    waits = Request(5, ids, 5, Sampling(), np.zeros(2, np.uint32), number=5)
    assert victims(9, Claims({5: waits}, ())) == [idle]
    assert victims(9, Claims({}, {longer_idle})) == [idle]


def test_who_waits_while_weights_change_asks_for_pages_of_the_new_ones():
    request = Request(0, GROUP, 5, Sampling(), np.zeros(2, np.uint32))
    for version in (0, 0, 1):
        assert request.prefix_keys(8, version) == prefix_keys(GROUP[:-1], 8, version)


def test_in_a_batch_every_share_has_rows_of_its_own():
    batches = PrefillBatcher(SIZES, shards=3)
    for shard, sequence, size in ((0, 0, 16), (0, 1, 16), (0, 1, 8), (2, 4, 16), (1, 2, 8)):
        assert batches.has_room(shard, sequence, size)
        batches.add(shard, sequence, PrefillChunk(start=sequence, ids=[sequence] * 3, size=size))
    assert batches.has_room(1, 0, 8) and batches.has_room(2, 0, 8)
    assert not batches.has_room(1, 0, 16)  # room is before its last chunk, and the budget is spent
    chunks = batches.arrays()
    assert chunks.num_batches == 2
    np.testing.assert_array_equal(chunks.slot_QR[:2], [[0, 1, 0, 0, 4, 0], [1, 0, 2, 0, 0, 0]])
    np.testing.assert_array_equal(chunks.count_QR[:2], [[3, 3, 0, 0, 3, 0], [3, 0, 3, 0, 0, 0]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"max_sequences": 6},
            "engine.max_sequences 6 must be a multiple of the mesh's data axes, 4: set it to 8",
        ),
        (
            {"pages": 50},
            "engine.pages 50 must be a multiple of the mesh's data axes, 4: set it to 52",
        ),
        ({"pages": 44}, "engine.pages 44 leave 11 .*max_sequence_length 96: set it to 48 or more"),
    ],
)
def test_what_cannot_be_divided_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        engine_shape(**{"max_sequences": 4, "pages": 48} | changes).shard(4)
