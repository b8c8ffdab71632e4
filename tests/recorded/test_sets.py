"""Data sets of recorded conversations: every one is learned, held out, or dropped for a reason."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ale_jax.config.learn import Shape
from ale_jax.config.recorded import RecordedData
from ale_jax.config.worlds import WarmStartConfig
from ale_jax.data.mixing import end_of_epochs, mix, place
from ale_jax.data.packing import demonstration
from ale_jax.recorded.sets import EVALUATED, POOR, Reader, Terms
from ale_jax.system.warm_start import full_rows
from tests.recorded.made import USER, WITH_TOOLS, ours, said, write
from tests.recorded.test_formats import EPISODE

SHAPE = Shape(microbatch_rows=2, pack_length=400, chunks_per_pack=8)


@pytest.fixture(scope="module")
def tokenizer():
    return ours()


def talk(number, **more):
    """A conversation whose task no other number has."""
    task = {"role": "user", "content": f"task {number}"}
    return {"messages": [task, said(f"done {number}")]} | more


def read(tokenizer, folder, records, warm=None, evaluated=(), **data):
    write(folder / "traj.jsonl", *records)
    terms = Terms(warm or WarmStartConfig(), SHAPE, str(folder), lambda item: item in evaluated)
    data = RecordedData(name="set", files="traj.jsonl", **data)
    return Reader(data, terms, tokenizer).read(lambda number: None)


def texts(tokenizer, samples):
    return [tokenizer.decode(s.turns[-1].action_ids).strip() for s in samples]


def test_those_that_earned_less_are_dropped_and_counted(tokenizer, tmp_path):
    records = [talk(n, reward=n / 10) for n in range(10)]
    found = read(tokenizer, tmp_path, records, min_reward=0.7)
    assert texts(tokenizer, found.learned) == ["done 7", "done 8", "done 9"]
    assert (found.used, found.dropped) == ((3, 0), {POOR: 7})
    assert "10 records: 3 learned, 0 held out, 7 dropped (7 below min_reward)" in found.account


def test_a_conversation_without_a_reward_cannot_be_chosen_by_it(tokenizer, tmp_path):
    with pytest.raises(ValueError, match=r"traj\.jsonl, line 2: reward: "):
        read(tokenizer, tmp_path, [talk(0, reward=1), talk(1)], min_reward=0.5)


def test_episodes_of_items_that_are_evaluated_are_never_learned(tokenizer, tmp_path):
    told = [USER, said("ok")]
    records = [EPISODE | {"item": n, "messages": told} for n in range(4)]
    records.append(EPISODE | {"item": 4, "messages": told, "reward": None, "solved": False})
    kept = {("shell", "sort", 1), ("shell", "sort", 2)}
    found = read(tokenizer, tmp_path, records, evaluated=kept, min_reward=1.0)
    assert len(found.learned) == 2 and found.dropped == {EVALUATED: 2, POOR: 1}


def test_nothing_to_learn_is_an_error_that_says_why(tokenizer, tmp_path):
    with pytest.raises(
        ValueError, match=r"data set: 2 .* 2 dropped \(2 no reply to learn\).*: there"
    ):
        read(tokenizer, tmp_path, [{"messages": [USER]}] * 2)


def test_masked_replies_and_cut_conversations_are_counted(tokenizer, tmp_path):
    warm = WarmStartConfig(mask_errors=True)
    found = read(tokenizer, tmp_path, [WITH_TOOLS, WITH_TOOLS], warm, too_long="cut")
    kept = found.learned[0].num_chunks
    assert 0 < kept < 3 and found.cut == 2  # three are not masked
    assert (found.replies, found.masked) == (8, 2)


def test_what_begins_alike_is_held_out_together(tokenizer, tmp_path):
    records = [talk(number) for number in range(100) for _ in range(2)]
    found = read(tokenizer, tmp_path, records, WarmStartConfig(held_out_share=0.3))
    held, kept = (Counter(texts(tokenizer, s)) for s in (found.held_out, found.learned))
    assert 20 <= len(held) <= 40 and not held.keys() & kept.keys()
    assert set((held | kept).values()) == {2} and len(held | kept) == 100
    fewer = read(tokenizer, tmp_path, records[:50], WarmStartConfig(held_out_share=0.3))
    assert set(texts(tokenizer, fewer.held_out)) <= held.keys()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=40), st.integers(1, 3), st.integers(1, 4))
def test_each_is_used_once_per_epoch(lengths, epochs, rows):
    shape = Shape(microbatch_rows=rows, pack_length=16, chunks_per_pack=4)
    samples = [
        demonstration([([number + 100], [1] * length)]) for number, length in enumerate(lengths)
    ]
    last = end_of_epochs([len(samples)], (1,), epochs)
    updates = full_rows(itertools.islice(mix([samples], (1,), seed=3), last), 3, shape)
    used = Counter(
        int(id)
        for batches in updates
        for batch in batches
        for id in batch.tokens_BT.flat
        if id > 99
    )
    assert used == {number + 100: epochs for number in range(len(samples))}


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 7)), min_size=1, max_size=4),
    st.integers(1, 3),
)
def test_epochs_end_with_the_last_sample_of_the_slowest_set(sets, epochs):
    sizes, ratios = [size for size, _ in sets], tuple(ratio for _, ratio in sets)
    end = end_of_epochs(sizes, ratios, epochs)
    counts = Counter(place(position, ratios)[0] for position in range(end))
    assert all(counts[n] >= epochs * size for n, size in enumerate(sizes) if size)
    if end:
        domain, number = place(end - 1, ratios)
        assert number + 1 == epochs * sizes[domain]


def test_every_token_of_a_text_is_learned_once(tokenizer, tmp_path):
    long = "A sentence of a book, which ends with <|im_end|>. " * 40
    found = read(tokenizer, tmp_path, [{"text": long}, {"text": "short"}, talk(1)])
    assert found.used == (3, 0) and found.replies == 1 and len(found.learned) > 3
    blocks = [sample.turns[0] for sample in found.learned[:-1]]
    assert max(len(b.prompt_ids) + len(b.action_ids) for b in blocks) == SHAPE.pack_length
    end = tokenizer.end_of_text
    learned = np.concatenate([block.action_ids for block in blocks])
    expected = [*tokenizer.plain_ids(long), end, *tokenizer.plain_ids("short"), end]
    np.testing.assert_array_equal(learned, expected)
    before = [end, *expected[:-1]]  # behind each token that is learned first stands its own
    starts = np.cumsum([0, *(len(block.action_ids) for block in blocks)])[:-1]
    assert [int(block.prompt_ids[0]) for block in blocks] == [before[start] for start in starts]
    (special,) = tokenizer.text_ids("<|im_end|>")
    assert special not in tokenizer.plain_ids(long)


@pytest.mark.parametrize("text", [3, " ", None])
def test_a_text_that_is_none_is_named(tokenizer, tmp_path, text):
    with pytest.raises(ValueError, match=r"line 1: text: .* is no text"):
        read(tokenizer, tmp_path, [{"text": text}])


def test_texts_that_earned_less_are_dropped(tokenizer, tmp_path):
    records = [{"text": "good", "reward": 1.0}, {"text": "bad", "reward": 0.2}]
    assert read(tokenizer, tmp_path, records, min_reward=0.5).dropped == {POOR: 1}
