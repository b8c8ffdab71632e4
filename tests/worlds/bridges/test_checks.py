"""Each check on right, wrong and hostile replies."""

import pytest

from ale_jax.worlds.api import NoVerdictError, VerifierError
from ale_jax.worlds.bridges import checks
from ale_jax.worlds.bridges.apart import apart
from tests.rows import each_row

MANY_NUMBERS = "\n".join(f"#### {n}" for n in range(100))


@each_row(
    "reply, answer, reward",
    [
        ("Paris", "Paris", 1.0),
        (" Paris\n", "Paris", 1.0),
        ("It is in France. Answer: **Paris**", "Paris", 1.0),
        ("so \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}", 1.0),
        ("<think>Rome?</think>Paris", "Paris", 1.0),
        ("Answer: yes\nmore text", "Answer: yes\nmore text", 1.0),
        ("paris", "Paris", 0.0),
        ("Paris or Rome", "Paris", 0.0),
        ("Answer: Paris\nAnswer: Rome", "Paris", 0.0),
        ("<think>Paris", "Paris", 0.0),
        ("\\boxed{Paris", "Paris", 0.0),
        ("", "Paris", 0.0),
        ("{" * 10000 + "\\boxed{" * 10000, "Paris", 0.0),
    ],
)
def test_exact(reply, answer, reward):
    assert checks.exact(reply, answer) == reward


@each_row(
    "reply, answer, reward",
    [
        ("They have 3 + 15 = 18 eggs.\n#### 18", "18", 1.0),
        ("It costs $1,234.50.", "1234.5", 1.0),
        ("the answer is -7", "-7", 1.0),
        ("5-3 = 2", "2", 1.0),
        ("It is 5-3", "3", 1.0),
        ("Answer: 6/8", "3/4", 1.0),
        ("2e3", "2000", 1.0),
        ("\\boxed{12}, which is 4 more than 8", "12", 1.0),
        ("<think>18</think> 17", "18", 0.0),
        ("18 or 19", "18", 0.0),
        ("1,2,18", "1218", 0.0),
        (MANY_NUMBERS, "18", 0.0),
        (MANY_NUMBERS, "99", 1.0),  # one answer is taken from a reply: the last
        ("1/0", "0", 0.0),
        ("#### nothing", "18", 0.0),
        ("no number", "18", 0.0),
        ("١٨", "18", 0.0),
        ("9" * 100_000, "18", 0.0),
        ("1," * 100_000, "18", 0.0),
        ("1e999", "18", 0.0),
    ],
)
def test_number(reply, answer, reward):
    assert checks.number(reply, answer) == reward


@each_row(
    "reply, answer, reward",
    [
        ("B", "B", 1.0),
        ("(B)", "B", 1.0),
        ("B. A dog", "B", 1.0),
        ("First A looks right.\nThe answer is (B).", "B", 1.0),
        ("Answer: **B**", "B", 1.0),
        ("\\boxed{B}", "B", 1.0),
        ("A or B", "B", 0.0),
        ("A, B, C, D", "B", 0.0),
        ("A B C D", "D", 0.0),
        ("AB", "B", 0.0),
        ("E", "B", 0.0),
        ("", "B", 0.0),
        ("Answer: A\nAnswer: B\nAnswer: C", "B", 0.0),
    ],
)
def test_choice(reply, answer, reward):
    assert checks.choice(reply, answer, "ABCD") == reward


@each_row(
    "reply, code",
    [
        ("```python\nx = 1\n```", "x = 1\n"),
        ("Here:\n```\n    return 1\n```\nand\n```\nother\n```", "    return 1\n"),
        ("<think>```\nx = 2\n```</think>```py\nx = 1\n```", "x = 1\n"),
        ("```python\nx = 1", "x = 1"),
        ("    return 1\n", "    return 1\n"),
        ("```python\ns = '```'\n```", "s = '```'\n"),
    ],
)
def test_code(reply, code):
    assert checks.code(reply) == code


def right(check, reply, answer, seconds=20.0, control=""):
    return apart(check).is_right(reply, answer, seconds, control)


@pytest.mark.heavy
def test_a_pattern_has_to_match_the_whole_answer():
    assert right("regex", "12 apples", r"\d+ apples?")
    assert not right("regex", "12 apples or 13", r"\d+ apples?")


@pytest.mark.heavy
def test_a_check_that_never_ends_is_ended():
    slow = r"(a+)+b"
    with pytest.raises(NoVerdictError, match=r"no verdict within 0.2 s"):
        right("regex", "a" * 40, slow, 0.2)
    with pytest.raises(VerifierError, match=r"no verdict within 0.2 s"):
        right("regex", "a" * 40, slow, 0.2, control="a" * 40)
    assert right("regex", "aab", slow)


MATH = [
    (r"so \boxed{\frac{1}{2}}", "0.5", True),
    (r"Therefore $x = \sqrt{8}$.", r"2\sqrt{2}", True),
    (r"\boxed{(1, 2)}", r"\left(1,2\right)", True),
    (r"\boxed{3}", r"It follows that the sum is $\boxed{3}$.", True),
    (r"\boxed{1} \boxed{2} \boxed{3}", "3", False),
    (r"\boxed{3 \text{ or } 4}", "3", False),
    (r"\boxed{\frac{\frac{", "3", False),
    ("{" * 5000 + "$" * 5000, "3", False),
    ("", "3", False),
]


@pytest.mark.heavy
def test_math_is_compared_as_math_verify_does():
    pytest.importorskip(
        "math_verify", reason="math-verify is not installed; type: make install-test"
    )
    from math_verify import parse, verify

    for reply, answer, is_right in MATH:
        assert right("math", reply, answer, control=rf"\boxed{{{answer}}}") == is_right, reply
        gold = parse(answer if "$" in answer else f"${answer}$")
        assert bool(verify(gold, parse(reply))) == is_right, reply


@pytest.mark.heavy
def test_math_that_never_ends_is_ended():
    pytest.importorskip(
        "math_verify", reason="math-verify is not installed; type: make install-test"
    )
    endless = r"\boxed{\sum_{k=1}^{10^9} \sin(k^{k^k})^{9^{9^9}}}"
    with pytest.raises(NoVerdictError):
        right("math", endless, "3", 2.0, control=r"\boxed{3}")
    with pytest.raises(VerifierError, match="finds no value"):
        right("math", "3", "$$", control="3")
