"""What passes between a front end and the process that owns the sandboxes."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ale_jax.sandbox.api import ImageMissing, SandboxError, SandboxLost
from ale_jax.sandbox.node import frames
from ale_jax.sandbox.pool.api import (
    Cause,
    Change,
    PoolFull,
    QuotaExceeded,
    SandboxGone,
    State,
    Status,
)
from ale_jax.sandbox.service.bodies import MAX_LABELS_BYTES, StartBody
from ale_jax.sandbox.service.protocol import Refusal
from ale_jax.sandbox.spec import MAX_TEXT_BYTES, SandboxSpec


def read(data: bytes):
    async def from_data():
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        return await frames.read(reader)

    return asyncio.run(from_data())


PLAIN = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=9) | st.binary()
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=12,
)


@settings(deadline=None, max_examples=100)
@given(VALUES)
def test_a_value_arrives_as_it_was_sent(value):
    assert read(frames.pack(value)) == value


def frame(head) -> bytes:
    text = json.dumps(head).encode()
    return frames.SIZE.pack(len(text)) + text


@pytest.mark.parametrize(
    "data",
    [
        frames.SIZE.pack(frames.MAX_HEAD + 1) + b"{}",
        frames.SIZE.pack(2) + b"{x",
        frame([]),
        frame({"value": 1}),
        frame({"value": {}, "blobs": [[["a", "b"], 1]]}) + b"x",
        frame({"value": {}, "blobs": [[[0], frames.MAX_BLOBS + 1]]}),
        frame({"value": [], "blobs": [[[7], 1]]}) + b"x",
        frame({"value": {}, "blobs": [[["a"], -1]]}),
        frame({"value": {}, "blobs": 7}),
    ],
)
def test_a_bad_frame_is_refused(data):
    with pytest.raises(ValueError):
        read(data)


def test_what_the_far_end_would_not_read_is_refused_before_it_is_sent(monkeypatch):
    whole = frames.pack(["x" * 1000])
    monkeypatch.setattr(frames, "MAX_HEAD", len(whole) - frames.SIZE.size)
    assert read(frames.pack(["x" * 1000])) == ["x" * 1000]
    with pytest.raises(Refusal, match="bytes of JSON are more than the"):
        frames.pack(["x" * 1001])


def test_three_thousand_of_the_largest_starts_fit_into_one_listing():
    most = MAX_TEXT_BYTES - len('[[["A", ""]], [], []]')
    spec = SandboxSpec(env=(("A", "x" * most),))
    labels = {"l": "x" * (MAX_LABELS_BYTES - len('{"l": ""}'))}
    assert StartBody(spec=spec.to_json(), labels=labels).request().spec == spec
    life = tuple(Change(0.0, State.RUNNING, "x" * 100) for _ in range(10))
    pair = (State.STOPPED, Cause.STOPPED, 0, 0, 0.0, 0.0)
    status = Status("x" * 128, "node", "bubblewrap", *pair, spec, labels, life)
    assert 3000 * len(frames.pack([status])) < frames.MAX_HEAD


def test_a_frame_that_breaks_off_is_the_end():
    for size in (0, 3, 5, len(whole := frames.pack({"a": b"xyz"})) - 1):
        with pytest.raises(EOFError):
            read(whole[:size] if size else b"")


@pytest.mark.parametrize(
    "error",
    [
        SandboxGone("a", Cause.IDLE),
        SandboxGone("a", None),
        SandboxLost("it died"),
        PoolFull("full"),
        QuotaExceeded("sandboxes 4 is more than this token may use, 3"),
        ImageMissing("no image"),
        SandboxError("no"),
        FileNotFoundError("'x' cannot be read"),
        OSError(28, "No space left on device"),
        ValueError("choose another"),
        Refusal(409, "id_taken", "taken", "choose another", "idle"),
    ],
    ids=repr,
)
def test_an_error_is_raised_as_it_was(error):
    again = frames.error_from_json(json.loads(json.dumps(frames.error_to_json(error))))
    assert type(again) is type(error) and str(again) == str(error)
    assert {**vars(again)} == {**vars(error)}


def test_of_a_fault_of_ours_only_its_existence_is_told():
    again = frames.error_from_json(frames.error_to_json(KeyError("/secret")))
    assert type(again) is SandboxError and "secret" not in str(again)
