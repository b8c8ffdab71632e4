"""Who comes to the coordinator's port, and who does not."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from ale_jax.system.doctor.findings import State
from ale_jax.system.doctor.roll_call import check_coordinator
from tests.system.hosts.test_processes import free_address

SHORT_S, LONG_S = 0.5, 30.0


@pytest.fixture
def address():
    return free_address()


def call(address, processes, numbers, seconds):
    """What each of the processes `numbers` found."""
    with ThreadPoolExecutor(len(numbers)) as pool:
        calls = [pool.submit(check_coordinator, address, processes, n, seconds) for n in numbers]
        return [each.result() for each in calls]


def test_all_come_whoever_is_first_and_the_port_is_free_again(address):
    for numbers in ((0, 1, 2), (2, 1, 0)):
        found = call(address, 3, numbers, LONG_S)
        assert [finding.state for finding in found] == [State.OK] * 3


@pytest.mark.heavy
def test_who_is_missing_is_named_to_all(address):
    for finding in call(address, 4, (0, 2), 5.0):  # a busy machine needs some for those who come
        assert finding.state is State.FAIL
        assert finding.found == "process 1, 3 of 4 did not come within 5 s"
        assert "same line on all hosts" in finding.remedy


@pytest.mark.parametrize(("numbers", "wrong"), [((0, 1, 1), 1), ((0, 5), 5)])
def test_a_number_that_is_not_its_own_is_named_to_all(address, numbers, wrong):
    for finding in call(address, 3, numbers, LONG_S):
        assert finding.state is State.FAIL
        assert finding.found == f"another process calls itself number {wrong} of 3"


def test_a_first_process_that_does_not_come_is_missed(address):
    (finding,) = call(address, 2, (1,), SHORT_S)
    assert finding.state is State.FAIL and f"{address} was not reached" in finding.found
    assert "start process 0" in finding.remedy


def test_a_port_that_another_program_has_is_named(address):
    port = int(address.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        (finding,) = call(address, 2, (0,), SHORT_S)
    assert finding.state is State.FAIL and f"port {port} cannot" in finding.found
    assert "another port" in finding.remedy


def test_strangers_at_the_port_are_not_counted(address):
    host, port = address.split(":")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(check_coordinator, address, 2, 0, LONG_S)
        for greeting in (b"GET / HTTP/1.1\r\n\r\n", b"", b"x\n", b"1" * 20 + b"\n"):
            _greet(host, int(port), greeting, first)
        assert check_coordinator(address, 2, 1, LONG_S).state is State.OK
        assert first.result().state is State.OK


def _greet(host, port, greeting, first):
    while not first.done():
        try:
            with socket.create_connection((host, port)) as connected:
                return connected.sendall(greeting)
        except ConnectionRefusedError:
            continue  # it does not listen yet


def test_a_port_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="from 1 to 65535"):
        check_coordinator("h:65536", 2, 0)
