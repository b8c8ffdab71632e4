"""Evaluation items that training has, almost word for word."""

import json

from hypothesis import given
from hypothesis import strategies as st

from ale_jax.worlds.duplicates import COMMON, Duplicate, near_duplicates
from ale_jax.worlds.rows import Rows

LONG = "A farmer has twelve sheep and sells five of them on the market; how many sheep are left?"


def found(folder, trained, evaluated):
    for name, questions in (("train", trained), ("eval", evaluated)):
        rows = ({"id": f"{name}{n}", "question": each} for n, each in enumerate(questions))
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return list(near_duplicates(Rows("train.jsonl", eval_path="eval.jsonl").at(folder)))


def test_the_same_words_with_other_signs_and_one_more_are_found(tmp_path):
    copy = f"{LONG.upper().replace(';', ',')} Answer."
    (same,) = found(tmp_path, ["Something else entirely", LONG], ["What is the capital?", copy])
    assert (same.evaluated, same.trained) == ("eval1", "train1") and 0.8 <= same.share < 1.0


def test_another_question_of_the_same_kind_is_none(tmp_path):
    other = LONG.replace("twelve sheep", "thirty cows").replace("five", "two")
    assert found(tmp_path, [LONG], [other]) == []


def test_short_items_are_compared_as_a_whole(tmp_path):
    assert found(tmp_path, ["12 + 13 ="], ["12 + 14 =", "12+13"]) == [
        Duplicate("eval1", "train0", 1.0)
    ]


def test_the_wording_that_all_items_share_says_nothing(tmp_path):
    start = "Solve the following puzzle, think about it as long as you like, explain each step to "
    start += "a child of ten years, and give the last line of your answer alone:"
    trained = [f"{start} number {n}" for n in range(COMMON + 5)]
    assert found(tmp_path, trained, [f"{start} word x"]) == []


@given(st.text(max_size=40))
def test_any_text_is_compared(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("rows")
    assert all(each.share >= 0.8 for each in found(folder, [text, "a"], ["b", text + "!"]))
