"""Countdown: the parser's verdicts, puzzles that can be solved, and what is paid."""

import re
from fractions import Fraction

import pytest

from ale_jax.envs.countdown.expression import MAX_CHARS, ExpressionError, evaluate
from ale_jax.envs.countdown.puzzle import FAMILIES, HIGHEST, _results, generate, owner
from tests.played_worlds import Played
from tests.rows import each_row

EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES)
EVAL = 2**30  # the first seed of the evaluation split


@each_row(
    "text, value, numbers",
    [
        ("7", 7, [7]),
        ("2+3*4", 14, [2, 3, 4]),
        ("(2+3)*4", 20, [2, 3, 4]),
        ("9-4-3", 2, [9, 4, 3]),
        ("24/4/3", 2, [24, 4, 3]),
        ("8/3*3", 8, [8, 3, 3]),  # exactly: in floating point 8/3*3 may be 7.999...
        ("1/3", Fraction(1, 3), [1, 3]),
        ("3-8", -5, [3, 8]),
        (" ( 1 +2 )* 3\t", 9, [1, 2, 3]),
        ("0007", 7, [7]),
        ("((((5))))", 5, [5]),
    ],
)
def test_an_expression_has_its_value(text, value, numbers):
    assert evaluate(text) == (value, numbers)


@each_row(
    "text, reason",
    [
        ("", "not 'the end'"),
        ("3+", "not 'the end'"),
        ("-3", "not '-'"),
        ("3 4", "'4' is out of place"),
        ("(3", "')' is missing"),
        ("3)", "')' is out of place"),
        ("()", "not ')'"),
        ("2**3", "not '*'"),
        ("2//3", "not '/'"),
        ("3/(4-4)", "division by 0"),
        ("12345", "more than 4 digits"),
        ("3=3", "'=' is neither"),
        ("2^3", "'^' is neither"),
        ("1.5", "'.' is neither"),
        ("1e3", "'e' is neither"),
        ("１+2", "'１' is neither"),
        ("__import__('os')", "'_' is neither"),
        ("(" * 17 + "1" + ")" * 17, "more than 16 parentheses"),
        ("1+" * 150 + "1", f"longer than {MAX_CHARS}"),
    ],
)
def test_what_is_no_expression_is_refused_with_the_reason(text, reason):
    with pytest.raises(ExpressionError, match=re.escape(reason)):
        evaluate(text)


@EVERY_FAMILY
def test_the_solution_solves_the_puzzle_and_its_steps_are_true(family):
    for seed in (*range(100), *range(EVAL, EVAL + 100)):
        puzzle = generate(family, seed)
        *steps, answer = puzzle.solution.split("\n")
        value, numbers = evaluate(answer)
        assert value == puzzle.target and sorted(numbers) == sorted(puzzle.numbers)
        assert len(steps) == len(puzzle.numbers) - 1 == FAMILIES[family].count - 1
        for step in steps:
            left, right = step.split("=")
            assert evaluate(left)[0] == int(right) and 1 <= int(right) <= HIGHEST
        said = f"{puzzle.target} {puzzle.numbers}"
        assert re.findall(r"\d+", puzzle.instruction) == re.findall(r"\d+", said)


def test_operations_stay_within_the_highest_value_and_are_not_trivial():
    assert _results(98, 1) == {"+": HIGHEST, "-": 97}
    assert _results(98, 2) == {"-": 96, "/": 49}
    assert _results(9, 11) == {"+": 20, "*": HIGHEST}
    assert _results(3, 3) == {"+": 6, "*": 9, "/": 1}


@EVERY_FAMILY
def test_no_puzzle_is_in_both_splits_whatever_the_order_of_its_numbers(family):
    train = {_content(generate(family, seed)) for seed in range(1000)}
    unseen = {_content(generate(family, EVAL + seed)) for seed in range(300)}
    assert not train & unseen
    assert len(unseen) > 100
    assert {owner(generate(family, s)) for s in range(50)} == {"train"}


def _content(puzzle):
    return (*sorted(puzzle.numbers), puzzle.target)


@EVERY_FAMILY
def test_a_seed_is_one_puzzle_and_no_target_is_common(family):
    assert generate(family, 7) == generate(family, 7)
    targets = [generate(family, seed).target for seed in range(300)]
    assert max(map(targets.count, targets)) < 300 / 10
    numbers = {n for seed in range(300) for n in generate(family, seed).numbers}
    assert numbers == set(range(1, FAMILIES[family].highest + 1))


# Seed 0 of countdown3: 22 out of 7, 2 and 8.
@each_row(
    "reply, reward, malformed",
    [
        ("8+7*2", 1.0, False),
        ("no idea\n7*2=15\n(7*2)+8\n", 1.0, False),  # only the last line counts
        ("7*2+8\n7", 0.0, False),
        ("7+8+7", 0.0, False),  # 22, but not of these numbers
        ("22", 0.0, False),
        ("7*2+8+8-8", 0.0, False),  # 22, a number used three times
        ("7*2", 0.0, False),
        ("7*2+8=22", 0.0, True),
        ("", 0.0, True),
        ("x" * 300, 0.0, True),
    ],
)
def test_what_is_paid(reply, reward, malformed):
    env = Played("countdown3")
    instruction, _ = env.reset(0)
    assert "22" in instruction
    answer = env.step(reply)
    assert answer == ("", reward, True, False, {"malformed": malformed, "failed": malformed})


def test_no_answer_earns_nothing():
    env = Played("countdown3")
    env.reset(0)
    assert env.grade() == 0.0


def test_unknown_families_and_seeds_are_refused():
    with pytest.raises(ValueError, match="unknown family 'chess', expected one of: countdown3"):
        generate("chess", 0)
    with pytest.raises(ValueError, match="seed -1 is in no split"):
        generate("countdown3", -1)
