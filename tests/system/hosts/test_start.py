"""How processes find each other, and whom they refuse."""

import json
import queue
import socket
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from ale_jax.command_line import read_flags
from ale_jax.system.hosts import start
from ale_jax.system.hosts.start import (
    HostOptions,
    _is_in_cluster,
    accept_followers,
    connect_to_leader,
    digest,
    own_address,
    served_at,
    spawned,
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("", 0, 0), "--processes=0 must be at least 1"),
        (("h:1", 2, 2), r"--process=2 must be from 0 to 1"),
        (("h:1", 2, -1), r"--process=-1 must be from 0 to 1"),
        (("", 2, 0), "--coordinator is missing"),
        (("h", 2, 0), "--coordinator=h must be HOST:PORT"),
        (("h:65536", 2, 0), "--coordinator=h:65536 must be HOST:PORT, with a port from 1 to 65535"),
    ],
)
def test_what_names_no_process_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        HostOptions(*options)


@pytest.mark.parametrize(
    ("own", "cluster_address", "expected"),
    [
        ("127.0.0.1", "", "127.0.0.1"),  # all rollout workers are on this machine
        ("127.0.0.1", "10.0.0.1", "10.0.0.1"),  # another process of the first one's machine
        ("10.0.0.2", "10.0.0.1", "10.0.0.2"),
        ("10.0.0.2", "", "10.0.0.2"),
    ],
)
def test_a_follower_serves_where_rollout_workers_reach_it(own, cluster_address, expected):
    assert served_at(own, cluster_address) == expected


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"SLURM_NTASKS": "1", "TPU_WORKER_HOSTNAMES": "localhost"}, False),
        ({"SLURM_NTASKS": "8"}, True),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, True),
        ({"MEGASCALE_NUM_SLICES": "2"}, True),
    ],
)
def test_a_cluster_is_recognized_by_the_number_of_its_processes(variables, expected):
    assert _is_in_cluster(variables) == expected


def test_the_address_is_as_private_as_the_coordinators(monkeypatch):
    assert own_address("127.0.0.1:80") == own_address("localhost:80") == "127.0.0.1"
    assert own_address("10.0.0.5:80") == "10.0.0.5"
    # Debian gives a machine's own name an address of loopback.
    monkeypatch.setattr(start.socket, "gethostbyname", {"gpu0": "127.0.1.1"}.get)
    with pytest.raises(ValueError, match=r"here gpu0 is 127\.0\.1\.1, which no other machine"):
        own_address("gpu0:80")


@pytest.mark.parametrize("typed", [["--spawn=3"], ["-spawn=3"], ["--spawn", "3"], ["-spawn", "3"]])
def test_a_process_that_was_spawned_spawns_none(monkeypatch, typed):
    lines = []

    def start_process(line, **options):
        lines.append(line)
        return SimpleNamespace(wait=lambda timeout: 0)

    monkeypatch.setattr(start.subprocess, "Popen", start_process)
    with spawned(3, ["--workdir=x", *typed]) as first:
        pass
    children = [read_flags(line[2:])[1] for line in lines]
    assert [(each.spawn, each.processes, each.process) for each in children] == [
        (1, 3, 1),
        (1, 3, 2),
    ]
    assert {each.coordinator for each in children} == {first.coordinator}
    assert {each.workdir for each in children} == {"x"}


def test_processes_that_were_spawned_end_at_once_with_one_that_is_interrupted(monkeypatch):
    done = []

    class Child:
        def __init__(self, line, **options):
            pass

        def kill(self):
            done.append("killed")

        def wait(self, timeout):
            done.append("awaited")

    monkeypatch.setattr(start.subprocess, "Popen", Child)
    with pytest.raises(KeyboardInterrupt):
        with spawned(3, []):
            raise KeyboardInterrupt
    assert done == ["killed", "killed", "awaited", "awaited"]


@pytest.fixture
def two(monkeypatch):
    """This process for both of a run, where the secret travels by a queue."""
    told = queue.Queue()

    def broadcast(text):
        if text:
            told.put(text)
            return text
        return told.get(timeout=10)

    monkeypatch.setattr(start, "_broadcast", broadcast)
    monkeypatch.setattr(start.jax, "process_count", lambda: 2)
    monkeypatch.setattr(start.jax, "process_index", lambda: 1)
    return told


def _close(connections):
    for connection in connections:
        connection.close()


def test_a_follower_is_welcome_and_a_stranger_is_not(two):
    own = digest({"seed": 1})
    with ThreadPoolExecutor(2) as pool:
        accepted = pool.submit(accept_followers, "127.0.0.1", own)
        host, port, token = json.loads(text := two.get(timeout=10))
        strangers = [socket.create_connection((host, port)) for _ in range(2)]
        strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
        impostor = start.Connection(strangers[1])
        impostor.send({"kind": "hello", "token": "x" * len(token), "process": 1, "digest": own})
        two.put(text)
        log, conversations, address = connect_to_leader(own)
        (pair,) = accepted.result(timeout=20).values()
        pair[0].send({"kind": "one"})
        pair[1].send({"kind": "two"})
        assert log.receive()[0] == {"kind": "one"}
        assert conversations.receive()[0] == {"kind": "two"}
        assert address == "127.0.0.1"
        with pytest.raises(start.Gone):
            impostor.receive()
        _close([*pair, log, conversations, impostor])


def test_another_config_is_refused_on_both_sides(two):
    with ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(accept_followers, "127.0.0.1", digest({"seed": 1}))
        with pytest.raises(ValueError, match=r"process 1 at .* has another config"):
            connect_to_leader(digest({"seed": 2}))
        with pytest.raises(ValueError, match="start all processes with the same line"):
            accepted.result(timeout=20)
