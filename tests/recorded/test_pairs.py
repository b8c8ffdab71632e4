"""Preference pairs: each format says the same, and what cannot be read is named."""

import numpy as np
import pytest

from ale_jax.config.learn import LearnConfig
from ale_jax.config.preferences import PreferencesConfig
from ale_jax.config.recorded import PreferenceData
from ale_jax.config.run import RunConfig
from ale_jax.config.worlds import WorldsConfig
from ale_jax.recorded.pair_sets import SAME, read_pairs
from ale_jax.recorded.pairs import Continuation, of_pair
from ale_jax.recorded.samples import NOTHING, TOO_LONG
from tests.recorded.made import SYSTEM, TOOLS, USER, call, ours, result, said, write

ASKED = [SYSTEM, USER]
GOOD = [said("", call("bash", "a", command="ls")), result("a", "7"), said("It is 7.")]
BAD = [said("It is 8.")]
PAIR = {"prompt": ASKED, "chosen": GOOD, "rejected": BAD, "tools": TOOLS}


@pytest.fixture(scope="module")
def tokenizer():
    return ours()


def read(tokenizer, folder, *records, length=400, **config):
    write(folder / "pairs.jsonl", *records)
    data = PreferenceData(name="set", files="pairs.jsonl")
    whole = RunConfig(
        preferences=PreferencesConfig(data=(data,), **config),
        learn=LearnConfig(microbatch_rows=2, pack_length=length, chunks_per_pack=8),
        worlds=WorldsConfig(folder=str(folder)),
    )
    return read_pairs(data, whole, tokenizer, lambda number: None)


def learned(tokenizer, sample):
    return [tokenizer.decode(turn.action_ids) for turn in sample.turns]


def context(tokenizer, sample):
    return tokenizer.decode(sample.turns[0].prompt_ids)


@pytest.mark.parametrize(
    "record",
    [
        PAIR | {"chosen": [*ASKED, *GOOD], "rejected": [*ASKED, *BAD], "prompt": None},
        PAIR | {"chosen": [*ASKED, *GOOD], "rejected": [*ASKED, *BAD], "prompt": "count"},
        PAIR | {"rejected": BAD[0]},
        PAIR | {"tools": str(TOOLS).replace("'", '"')},
    ],
    ids=["implicit", "prompt as text", "one message", "tools as text"],
)
def test_each_format_is_the_same_pair(record):
    assert of_pair(record) == of_pair(PAIR)


def test_only_the_answers_are_learned_and_tools_are_told(tokenizer, tmp_path):
    before = [*ASKED, said("Of what?"), {"role": "user", "content": "Of files."}]
    found = read(tokenizer, tmp_path, PAIR | {"prompt": before})
    ((chosen, rejected),) = found.learned
    asked = context(tokenizer, rejected)
    assert "Of what?" in asked and "Of files." in asked and '"name": "bash"' in asked
    assert np.array_equal(chosen.turns[0].prompt_ids, rejected.turns[0].prompt_ids)
    call_text, answer = learned(tokenizer, chosen)
    assert '"command": "ls"' in call_text and answer.strip() == "It is 7."
    assert [text.strip() for text in learned(tokenizer, rejected)] == ["It is 8."]


def test_masks_are_those_of_conversations(tokenizer, tmp_path):
    failed = [GOOD[0], result("a", "no", is_error=True), GOOD[2]]
    weighted = [said("It is 8.", weight=0), USER, said("It is 9.")]
    record = PAIR | {"chosen": failed, "rejected": weighted}
    ((chosen, rejected),) = read(tokenizer, tmp_path, record, mask_errors=True).learned
    assert [text.strip() for text in learned(tokenizer, chosen)] == ["It is 7."]
    assert [text.strip() for text in learned(tokenizer, rejected)] == ["It is 9."]
    ((chosen, _),) = read(tokenizer, tmp_path, record).learned
    assert chosen.num_chunks == 2


@pytest.mark.parametrize(
    ("record", "prompt", "answers"),
    [
        ({"prompt": "The sky is", "chosen": " blue.", "rejected": " green."}, None, None),
        ({"chosen": "The sky is blue.", "rejected": "The sky is black."}, None, None),
        ({"chosen": "Yes", "rejected": "Yet"}, "", ("Yes", "Yet")),
    ],
)
def test_plain_texts_are_parted_at_a_word(record, prompt, answers):
    pair = of_pair(record)
    expected = "The sky is" if prompt is None else prompt
    first, second = answers or (" blue.", record["rejected"].removeprefix("The sky is"))
    assert (pair.chosen, pair.rejected) == (
        Continuation(expected, first),
        Continuation(expected, second),
    )


def test_a_plain_answer_is_learned_with_its_end(tokenizer, tmp_path):
    ((chosen, _),) = read(
        tokenizer, tmp_path, {"prompt": "The sky", "chosen": " is blue", "rejected": " is"}
    ).learned
    (turn,) = chosen.turns
    end = tokenizer.end_of_text
    assert turn.prompt_ids.tolist() == [end, *tokenizer.plain_ids("The sky")]
    assert turn.action_ids.tolist() == [*tokenizer.plain_ids(" is blue"), end]


def test_each_pair_is_learned_held_out_or_dropped_for_a_reason(tokenizer, tmp_path):
    def asked(number):
        return PAIR | {"prompt": [{"role": "user", "content": f"count {number}"}]}

    records = [asked(number) for number in range(40)]
    records += [asked(99) | {"rejected": GOOD}, asked(99) | {"rejected": [said("no", weight=0)]}]
    records.append(asked(99) | {"chosen": [said("so long " * 300)]})
    found = read(tokenizer, tmp_path, *records, held_out_share=0.3)
    assert found.dropped == {SAME: 1, NOTHING: 1, TOO_LONG: 1}
    assert sum(found.used) == 40 and 3 < found.used[1] < 25
    assert "set: 43 records: " in found.account
    with pytest.raises(ValueError, match=r"preferences\.data set: 1 .*there is nothing to learn"):
        read(tokenizer, tmp_path, records[-1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rejected": None}, "rejected: a pair needs chosen and rejected; there are prompt"),
        ({"chosen": 3}, "chosen: 3 is no list of messages"),
        ({"chosen": ["x"]}, r"chosen\.0: 'x' is no object"),
        ({"chosen": "x"}, "rejected: .* is no text, as chosen is"),
        ({"prompt": None}, "prompt: it is missing, and chosen and rejected begin differently"),
        (
            {"prompt": "other", "chosen": [USER, *GOOD], "rejected": [USER, *BAD]},
            "prompt: 'other' is neither",
        ),
        ({"chosen": [{"role": "king", "content": ""}]}, r"chosen, after prompt: messages\.2"),
        ({"prompt": "a", "chosen": "", "rejected": "b"}, "chosen: it is empty"),
        ({"prompt": None, "chosen": "a b", "rejected": ""}, "rejected: it is empty"),
        ({"prompt": 3, "chosen": "a", "rejected": "b"}, "prompt: 3 is no text"),
    ],
)
def test_what_cannot_be_read_is_named(tokenizer, tmp_path, change, message):
    with pytest.raises(ValueError, match=rf"pairs\.jsonl, line 1: {message}"):
        read(tokenizer, tmp_path, PAIR | change)
