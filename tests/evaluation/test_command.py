"""ale-jax compare: what is typed, and what is answered."""

import json

import pytest

from ale_jax.evaluation.episodes import EPISODES_FILE
from ale_jax.launch import main
from tests.evaluation.results import result, write

BASE = ["0"] * 12 + ["1"] * 20
BETTER = ["1"] * 32


@pytest.fixture
def answer(tmp_path, monkeypatch, capsys):
    """answer(*words) -> (exit code, stdout, stderr), in a folder with some evaluations."""
    monkeypatch.chdir(tmp_path)
    for name, marks in (("base", BASE), ("better", BETTER), ("same", BASE), ("other", ["T"])):
        write(tmp_path / name, result(name, marks))
    for seed, name in enumerate(["a0", "a1", "b0", "b1"]):
        write(tmp_path / name, result(name, ["1"] * (5 + seed) + ["0"] * 9))

    def call(*words):
        code = main(["ale-jax", "compare", *words])
        return code, *capsys.readouterr()

    return call


def test_a_difference_is_told_in_a_table_and_a_sentence(answer):
    code, out, err = answer("base", "better/episodes.jsonl")
    assert (code, err) == (0, "")
    assert "62.5, 100.0" in out and "12, 0" in out
    assert (
        "better/episodes.jsonl is better than base: +37.5 (+16.6 to +54.0) points of pass@1, "
        "p = 0.0005" in out
    )


def test_what_cannot_be_told_says_how_much_it_takes(answer):
    _, out, _ = answer("base", "again=same")
    assert "again and base: cannot tell (the difference may be chance): +0.0 " in out
    assert " items would show 3 points with 80 % power, " in out and "more than these" in out


def test_counts_that_are_no_wrong_answers_have_columns_of_their_own(answer):
    _, out, _ = answer("other", "same")
    assert "same: not compared: 31 items that only same has" in out
    assert "truncated" in out and "no verdict" in out


def test_the_machines_answer_is_one_object(answer):
    code, out, _ = answer("base", "better", "same", "--json")
    told = json.loads(out)
    assert (code, out.count("\n")) == (0, 1)
    assert [each["name"] for each in told["results"]] == ["base", "better", "same"]
    assert told["results"][0]["all"]["pass_at_k"]["1"]["value"] == 0.625
    assert list(told["results"][0]["by"]) == ["world", "family", "metadata.level"]
    better, same = told["comparisons"]
    assert (better["verdict"], same["verdict"]) == ("better", "cannot tell")
    assert better["corrected"] == 2 * better["p_value"]


def test_runs_of_several_seeds_are_compared_by_seed(answer):
    code, out, _ = answer("a=a0,a1", "b=b0,b1")
    assert code == 0 and "seed by seed" in out
    assert "b and a: cannot tell (the rule looks after 3, 6, 9 seeds, not after 2)" in out
    assert "seeds would show 3 points" in out


def test_a_torn_line_is_told(answer, tmp_path):
    with (tmp_path / "same" / EPISODES_FILE).open("a") as file:
        file.write('{"wor')
    assert "same: the last line is incomplete and was left out" in answer("base", "same")[1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("base",), "compare needs at least two results"),
        (("base", "gone"), "there is no gone: name the folder of an evaluation"),
        (("base", "x=a0,"), "'x=a0,' is not understood: write folders"),
        (("x=a0,a1", "y=b0,./b0"), "'y=b0,./b0' names a folder twice: each run is of a seed"),
        (("base", "x=a0,a1"), "base is one result, and others are several runs"),
        (("a=a0,a1", "b=b0,b1,a0"), "a has 2 runs and b 3"),
        (("base", "damaged"), "damaged/episodes.jsonl, line 33: damaged (ValueError('NaN is"),
        (("base", "elsewhere"), "base and elsewhere have no judged pair in common: 32 items"),
    ],
)
def test_bad_input_is_answered_in_one_line(words, told, answer, tmp_path):
    damaged = write(tmp_path / "damaged", result("x", BASE)) / EPISODES_FILE
    damaged.write_text(damaged.read_text() + '{"reward": NaN}\n')
    write(tmp_path / "elsewhere", result("x", {"y": "1"}))
    code, out, err = answer(*words)
    assert (code, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1
    assert told in err
