"""Which JSON can be passed on."""

import json

import pytest

from ale_jax.gateway.json_values import MAX_DEPTH, flaw_of, value_or_text


@pytest.mark.parametrize(
    ("value", "flaw"),
    [
        ({"a": [1, 2.5, None, True, "é👩"]}, ""),
        ([{"a": ["\ud83d"]}], "half of a surrogate pair is no text"),
        ({"\udc00": 1}, "half of a surrogate pair is no text"),
        ([float("inf")], "a number must be finite"),
        ({"a": {"b": float("nan")}}, "a number must be finite"),
        (10**400, ""),
    ],
)
def test_what_no_answer_can_hold_is_found_anywhere(value, flaw):
    assert flaw_of(value) == flaw


def test_depth_is_bounded():
    text = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert not flaw_of(json.loads(text))
    assert "deep" in flaw_of(json.loads(f"[{text}]"))


@pytest.mark.parametrize("text", ["{", '{"a": "\\ud800"}', "[NaN]", "1e999", "[" * 200 + "]" * 200])
def test_what_cannot_be_passed_on_stays_text(text):
    assert value_or_text(text) == text


def test_what_can_is_read():
    assert value_or_text('{"a": [1, "\\ud83d\\udc69"]}') == {"a": [1, "👩"]}
