"""Frames between processes: numbers only, whole or not at all, and signs of life."""

import contextlib
import json
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ale_jax.system.hosts import connection as module
from ale_jax.system.hosts.connection import Connection, Gone


@contextlib.contextmanager
def _pair():
    ends = [Connection(each) for each in socket.socketpair()]
    try:
        yield ends
    finally:
        for end in ends:
            end.close()


@contextlib.contextmanager
def _against_raw():
    """A connection, and the bare socket at its other end."""
    ours, theirs = socket.socketpair()
    end = Connection(ours)
    try:
        yield end, theirs
    finally:
        end.close()
        theirs.close()


def _frame(header, payload=b""):
    text = json.dumps(header).encode()
    return struct.pack(">QQ", len(text), len(payload)) + text + payload


def test_arrays_arrive_bit_for_bit():
    arrays = [
        np.array([[1.5, -0.0], [np.inf, np.nan]], np.float32),
        np.arange(6, dtype=np.int16).reshape(2, 3)[:, ::2],  # not contiguous
        np.zeros((0, 4), bool),
        np.array(3, np.int32),
    ]
    with _pair() as (one, other):
        one.send({"kind": "rows", "text": "ä"}, arrays)
        header, found = other.receive()
    assert header == {"kind": "rows", "text": "ä"}
    for array, same in zip(arrays, found, strict=True):
        assert (array.dtype, array.shape) == (same.dtype, same.shape)
        assert array.tobytes() == same.tobytes()


@pytest.mark.parametrize(
    "sent",
    [
        _frame({"kind": "rows", "arrays": [["|O", [1]]]}, bytes(8)),
        _frame({"kind": "rows", "arrays": [["<f4", [1 << 60]]]}, bytes(8)),
        _frame({"kind": "rows", "arrays": [["<f4", [2]]]}, bytes(4)),
        _frame({"kind": "rows", "arrays": [["<f4", [-1]]]}),
        _frame({"kind": "rows"}),
        _frame([1]),
        struct.pack(">QQ", 1 << 50, 0),
        struct.pack(">QQ", 3, 0) + b"{{{",
    ],
    ids=["object", "huge", "short", "negative", "none", "no dict", "long header", "no JSON"],
)
def test_what_is_no_frame_ends_the_connection(sent):
    with _against_raw() as (end, theirs):
        theirs.sendall(sent)
        with pytest.raises(Gone, match="no frame"):
            end.receive()


@pytest.mark.parametrize(
    "sent",
    [
        _frame({"arrays": [["<f8", [1 << 37]]]})[:8] + struct.pack(">Q", 1 << 40),
        struct.pack(">QQ", 1 << 20, 0),
        _frame({"arrays": [["<f8", [0, 1 << 70]]]}),
    ],
    ids=["a TiB of arrays", "long header", "huge dimension"],
)
def test_whoever_connects_cannot_ask_for_memory(sent):
    with _against_raw() as (end, theirs):
        theirs.sendall(sent)
        with pytest.raises(Gone, match="no frame"):
            end.receive_hello()


def test_whoever_connects_cannot_keep_the_others_waiting(monkeypatch):
    monkeypatch.setattr(module, "HELLO_S", 0.5)
    with _against_raw() as (end, theirs), ThreadPoolExecutor(1) as pool:
        hello = pool.submit(end.receive_hello)
        with contextlib.suppress(OSError):
            while not hello.done():
                theirs.sendall(_frame({"kind": "alive", "arrays": []}))
                time.sleep(0.05)
        with pytest.raises(Gone, match="ended"):
            hello.result(timeout=20)


def test_whoever_has_said_hello_in_time_may_be_silent(monkeypatch):
    monkeypatch.setattr(module, "HELLO_S", 0.5)
    with _against_raw() as (end, theirs):
        theirs.sendall(_frame({"kind": "hello", "arrays": []}))
        assert end.receive_hello()["kind"] == "hello"
        time.sleep(1.0)
        theirs.sendall(_frame({"kind": "later", "arrays": []}))
        assert end.receive()[0]["kind"] == "later"


def test_an_end_that_closes_is_gone():
    with _against_raw() as (end, theirs):
        theirs.sendall(_frame({"arrays": []})[:5])
        theirs.close()
        with pytest.raises(Gone, match="ended"):
            end.receive()


def test_silence_is_told_from_waiting(monkeypatch):
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(module, "SILENCE_S", 0.5)
    with _pair() as (one, other):
        began = time.monotonic()
        while time.monotonic() - began < 1.0:  # it lives, and has nothing to say
            time.sleep(0.1)
        one.send({"kind": "end"})
        assert other.receive()[0] == {"kind": "end"}
    with _against_raw() as (end, _), pytest.raises(Gone, match=r"nothing was heard for 0\.5 s"):
        end.receive()


@pytest.mark.heavy
def test_a_batch_may_take_longer_than_a_silence(monkeypatch):
    monkeypatch.setattr(module, "SILENCE_S", 0.5)
    array = np.ones(2 << 20, np.int32)
    with _against_raw() as (end, theirs), ThreadPoolExecutor(1) as pool:
        theirs.settimeout(5.0)
        sending, received = pool.submit(end.send, {"kind": "rows"}, [array]), 0
        while not sending.done():  # for more than a second
            received += len(theirs.recv(1 << 17))
            time.sleep(0.02)
        sending.result()
        assert received > array.nbytes // 2  # the rest is in the socket
