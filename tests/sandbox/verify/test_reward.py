"""What counts as a reward in a file: finite numbers, and nothing that only looks like one."""

import pytest

from ale_jax.sandbox.verify.verifier import parse_object, parse_text
from tests.rows import each_row


@each_row(
    "content, number",
    [(b"1", 1.0), (b" 0.25\n", 0.25), (b"-.5", -0.5), (b"2.", 2.0), (b"+1E-2\n", 0.01)],
)
def test_a_text_is_one_number(content, number):
    assert parse_text(content) == {"reward": number}


@each_row(
    "content, fault",
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"1 0", "must contain one number"),
        (b"nan", "must contain one number"),
        (b"-inf", "must contain one number"),
        (b"1_0", "must contain one number"),
        (b"0x1", "must contain one number"),
        ("\u0661".encode(), "must contain one number"),  # an Arabic one, which float() would take
        (b"1\0", "must contain one number"),
        (b"\xff", "must contain one number"),
        (b"1e999", "not finite"),
        (b"9" * 60000, "not finite"),
    ],
)
def test_what_is_no_number_is_no_reward(content, fault):
    with pytest.raises(ValueError, match=fault):
        parse_text(content)


def test_an_object_is_numbers_by_name():
    assert parse_object(b'{"reward": 1, "style": 0.5}') == {"reward": 1.0, "style": 0.5}


@each_row(
    "content, fault",
    [
        (b"", "is empty"),
        (b"{}", "must contain an object of numbers"),
        (b"1", "must contain an object of numbers"),
        (b"[1]", "must contain an object of numbers"),
        (b'{"reward": true}', "True as 'reward', which is not a number"),
        (b'{"reward": "1"}', "not a number"),
        (b'{"reward": null}', "not a number"),
        (b'{"reward": {"a": 1}}', "not a number"),
        (b'{"reward": NaN}', "NaN is not JSON"),
        (b'{"reward": -Infinity}', "is not JSON"),
        (b'{"reward": 1e999}', "out of range"),
        (b'{"reward": 1' + b"0" * 400 + b"}", "out of range"),
        (b'{"reward": 1', "delimiter"),
        (b'\xff{"reward": 1}', "decode"),
        (b"[" * 60000, "nested too deeply"),
    ],
)
def test_what_is_no_object_of_numbers_is_no_reward(content, fault):
    with pytest.raises(ValueError, match=fault):
        parse_object(content)
