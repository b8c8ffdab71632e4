"""What follows from what the processes of a run tell of themselves."""

import socket
import threading

import pytest

from ale_jax.system.doctor import peers
from ale_jax.system.doctor.findings import Report, State, fail, ok
from ale_jax.system.doctor.peers import (
    add_up,
    check_alike,
    check_clocks,
    follow,
    others_findings,
    travel,
)
from ale_jax.system.hosts.connection import Connection

OWN = {"digest": "a", "kind of device": "TPU v6 lite", "jax": "0.10.2", "libtpu": "0.0.42"}


def test_what_differs_is_named_with_the_process():
    others = {
        1: OWN,
        2: OWN | {"digest": "b", "jax": "0.10.1"},
        3: {key: value for key, value in OWN.items() if key != "libtpu"},
        4: OWN | {"digest": "c"},
    }
    finding = check_alike(OWN, others)
    assert finding.state is State.FAIL
    assert finding.found.split("; ") == [
        "process 2 has jax 0.10.1 instead of 0.10.2",
        "process 3 has libtpu None instead of 0.0.42",
        "process 4 has another config, or sees other devices",
    ]
    assert check_alike(OWN, {1: OWN, 2: dict(OWN)}).state is State.OK


def test_clocks_are_compared_with_each_other_and_not_only_with_the_firsts():
    assert check_clocks({1: 0.6, 2: -0.3}).state is State.OK
    finding = check_clocks({1: 0.6, 2: -0.6})
    assert finding.state is State.FAIL
    assert finding.found == "at most 1.200 s apart (processes 2 and 1)"


def test_what_others_found_is_said_where_it_is_not_ok():
    sent = [["versions", "ok", "all", ""], ["disk", "FAIL", "full", "free some"]]
    (finding,) = others_findings(3, sent)
    assert (finding.name, finding.state) == ("3: disk", State.FAIL)
    (finding,) = others_findings(3, sent[:1])
    assert finding.state is State.OK and finding.name == "process 3"


@pytest.mark.parametrize("answer", [None, "soon", {"time": 1.0}])
def test_an_answer_of_another_kind_is_the_other_processes_failure(answer):
    ends = [Connection(end) for end in socket.socketpair()]
    try:
        ends[1].send({"kind": "answer", "answer": answer})
        with pytest.raises(ConnectionError, match="process 7 answered time with"):
            travel(7, ends[0], lambda: 0.0)
    finally:
        for end in ends:
            end.close()


@pytest.mark.parametrize("found", [ok("all-reduce", "3"), fail("all-reduce", "4"), TimeoutError()])
def test_a_sum_that_fails_on_another_process_alone_is_a_failure(monkeypatch, found):
    ends = [Connection(end) for end in socket.socketpair()]
    own = threading.current_thread()

    def check_sum():
        if threading.current_thread() is own:
            return ok("all-reduce", "3")
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(peers, "check_sum", check_sum)
    ended = []
    follower = threading.Thread(
        target=lambda: ended.append(follow(ends[1], OWN, Report(1), lambda: 0.0))
    )
    follower.start()
    report, is_right = Report(0), found == ok("all-reduce", "3")
    try:
        assert report.check("all-reduce", add_up, {1: ends[0]}) is is_right
        peers.end({1: ends[0]}, code=0, adds_up=is_right)
        follower.join()
    finally:
        for end in ends:
            end.close()
    assert ended == [(0, is_right)]
    failed = [finding.name for finding in report.findings if finding.state is State.FAIL]
    assert failed == ([] if is_right else ["1: all-reduce"])


@pytest.mark.heavy
def test_a_process_that_is_gone_when_all_add_up_is_a_failure(monkeypatch):
    ends = [Connection(end) for end in socket.socketpair()]
    monkeypatch.setattr(peers, "check_sum", lambda: ends[1].close() or ok("all-reduce", "3"))
    report = Report(0)
    assert report.check("all-reduce", add_up, {1: ends[0]}) is False
    assert "process 1 is gone" in report.findings[-1].found
    ends[0].close()
