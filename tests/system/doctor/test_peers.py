"""What follows from what the processes of a run tell of themselves."""

import socket

import pytest

from ale_jax.system.doctor.findings import State
from ale_jax.system.doctor.peers import check_alike, check_clocks, others_findings, travel
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
