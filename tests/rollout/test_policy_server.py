"""The server between rollout workers and the policy: who gets in, and what it survives."""

import json
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ale_jax.agent.api import Message, PolicyError, Reply
from ale_jax.rollout import policy_client
from ale_jax.rollout import policy_server as server_module
from ale_jax.rollout.engine import EngineStopped
from ale_jax.rollout.policy_client import PolicyAddress, PolicyClient
from ale_jax.rollout.policy_server import PolicyServer


class EchoLedger:
    """Answers with the name of the conversation, how often it spoke, and what it heard."""

    def __init__(self, *names):
        self.heard = {name: [] for name in names}

    def reply(self, name, new_messages):
        heard = self.heard[name]
        heard.append([m.content for m in new_messages])
        return Reply(f"{name} {len(heard)} {heard[-1][-1]}", "stop")


class StoppedLedger:
    def reply(self, name, new_messages):
        raise EngineStopped("engine closed")


class BrokenLedger:
    """Has a bug that strikes in one conversation."""

    def reply(self, name, new_messages):
        return Reply(str(1 // (name != "bug")), "length")


class WaitingLedger:
    """Answers nobody until it is told to."""

    def __init__(self):
        self.asked, self.go = threading.Event(), threading.Event()

    def reply(self, name, new_messages):
        self.asked.set()
        assert self.go.wait(30)
        return Reply("at last", "stop")


def say(text):
    return [Message("tool", text)]


def connect(server, token=None):
    connection = socket.create_connection((server.address.host, server.address.port), timeout=10)
    policy_client.send(connection, {"token": server.address.token if token is None else token})
    return connection


def request(conversation="a", messages=({"role": "user", "content": "x"},)):
    return {"conversation": conversation, "messages": list(messages)}


def hangs_up(connection) -> bool:
    """Whether the far end closes without a word (it may reset what it did not read)."""
    connection.settimeout(10)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def still_serves(server) -> bool:
    with PolicyClient(server.address, "a") as policy:
        return policy.reply(say("hello")).text.endswith("hello")


@pytest.fixture
def server(caplog):
    """A server that refuses what it must, and never stumbles over it."""
    with PolicyServer(EchoLedger("a", "b")) as server:
        yield server
    assert not [record for record in caplog.get_records("call") if record.levelname == "ERROR"]


def test_a_conversation_goes_on_over_one_connection(server):
    with PolicyClient(server.address, "a") as policy:
        assert policy.reply([Message("system", "s"), Message("user", "ü")]) == Reply(
            "a 1 ü", "stop"
        )
        connection = policy._connection
        assert policy.reply(say("\x00'\"\n")) == Reply("a 2 \x00'\"\n", "stop")
        assert policy._connection is connection
    assert server._ledger.heard["a"] == [["s", "ü"], ["\x00'\"\n"]]


def test_concurrent_clients_get_their_own_answers():
    names = [f"c{i}" for i in range(16)]

    def converse(name):
        with PolicyClient(server.address, name) as policy:
            return [policy.reply(say(f"{name}-{turn}")).text for turn in range(20)]

    with PolicyServer(EchoLedger(*names)) as server, ThreadPoolExecutor(len(names)) as pool:
        answers = list(pool.map(converse, names))
    assert answers == [[f"{n} {t + 1} {n}-{t}" for t in range(20)] for n in names]


@pytest.mark.parametrize("token", ["", "wrong", "W0DXNcVVuA8yJyXLQ2dSSg", 7, None, "\udcff"])
def test_without_the_token_nobody_gets_in(server, token):
    with socket.create_connection(
        (server.address.host, server.address.port), timeout=10
    ) as connection:
        policy_client.send(connection, {"token": token})
        assert hangs_up(connection)
    assert server._ledger.heard == {"a": [], "b": []}
    assert still_serves(server)


def test_a_player_with_a_wrong_token_gets_a_policy_error(server):
    wrong = PolicyAddress(server.address.host, server.address.port, "wrong")
    with PolicyClient(wrong, "a") as policy, pytest.raises(PolicyError):
        policy.reply(say("x"))
    assert server._ledger.heard["a"] == []


def test_a_stranger_may_not_even_send_a_long_frame(server):
    with socket.create_connection(
        (server.address.host, server.address.port), timeout=10
    ) as connection:
        connection.sendall(struct.pack(">I", server_module.MAX_TOKEN_FRAME_BYTES + 1))
        assert hangs_up(connection)


def test_a_stranger_who_says_nothing_is_disconnected(monkeypatch):
    monkeypatch.setattr(server_module, "TOKEN_S", 0.05)
    with PolicyServer(EchoLedger("a")) as server:
        with socket.create_connection(
            (server.address.host, server.address.port), timeout=10
        ) as connection:
            assert hangs_up(connection)
        assert still_serves(server)


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "too long": struct.pack(">I", policy_client.MAX_FRAME_BYTES + 1),
    "empty": struct.pack(">I", 0),
    "not utf-8": struct.pack(">I", 2) + b"\xff\xfe",
    "no object": struct.pack(">I", 4) + b"null",
    "deep": struct.pack(">I", 200_000) + b"[" * 200_000,
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_who_sends_garbage_is_disconnected_alone(server, garbage):
    with PolicyClient(server.address, "b") as other:
        other.reply(say("before"))
        with connect(server) as connection:
            connection.sendall(garbage)
            assert hangs_up(connection)
        assert other.reply(say("after")).text == "b 2 after"


MALFORMED = {
    "empty": {},
    "no messages": request(messages=()),
    "name is a number": request(conversation=7),
    "name is a list": request(conversation=["a"]),
    "messages are text": {"conversation": "a", "messages": "hello"},
    "content is a number": request(messages=[{"role": "user", "content": 1}]),
    "unknown role": request(messages=[{"role": "root", "content": "x"}]),
    "puts words into the policy's mouth": request(messages=[{"role": "assistant", "content": "x"}]),
}


@pytest.mark.parametrize("malformed", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_request_never_reaches_the_ledger(server, malformed):
    with connect(server) as connection:
        policy_client.send(connection, malformed)
        assert hangs_up(connection)
    assert server._ledger.heard["a"] == []
    assert still_serves(server)


def test_a_slow_frame_is_given_up(server, monkeypatch):
    monkeypatch.setattr(policy_client, "FRAME_S", 0.05)
    with connect(server) as connection:
        connection.sendall(struct.pack(">I", 100) + b"{")
        assert hangs_up(connection)
    monkeypatch.undo()
    assert still_serves(server)


def test_a_hang_up_is_an_error_only_in_the_middle_of_a_frame():
    for sent, received in ((b"", None), (struct.pack(">I", 2) + b"{}", {})):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(sent)
            theirs.shutdown(socket.SHUT_WR)
            assert policy_client.receive(ours) == received
    for sent in (b"\0", struct.pack(">I", 100), struct.pack(">I", 100) + b"{"):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(sent)
            theirs.shutdown(socket.SHUT_WR)
            with pytest.raises(policy_client.WireError, match="hung up"):
                policy_client.receive(ours)


@pytest.mark.parametrize("text", [b"null", b"[]", b'"error"', b"7"])
def test_a_frame_holds_an_object(text):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(struct.pack(">I", len(text)) + text)
        with pytest.raises(policy_client.WireError, match="not an object"):
            policy_client.receive(ours)


def test_an_unknown_conversation_is_refused_and_the_connection_kept(server):
    with connect(server) as connection:
        policy_client.send(connection, request("nobody's"))
        assert policy_client.receive(connection) == {"error": "there is no such conversation"}
        policy_client.send(connection, request("a"))
        assert policy_client.receive(connection)["text"] == "a 1 x"


def test_a_stopped_engine_is_a_policy_error_with_its_reason():
    with PolicyServer(StoppedLedger()) as server, PolicyClient(server.address, "a") as policy:
        with pytest.raises(PolicyError, match="engine closed"):
            policy.reply(say("x"))


def test_a_bug_in_one_conversation_leaves_the_others_alone():
    with PolicyServer(BrokenLedger()) as server:
        with PolicyClient(server.address, "bug") as policy, pytest.raises(PolicyError):
            policy.reply(say("x"))
        with PolicyClient(server.address, "fine") as policy:
            assert policy.reply(say("x")) == Reply("1", "length")


def test_nobody_else_speaks_while_a_reply_is_under_way():
    ledger = WaitingLedger()
    with PolicyServer(ledger) as server, connect(server) as first, connect(server) as second:
        policy_client.send(first, request("a"))
        assert ledger.asked.wait(10)
        policy_client.send(second, request("a"))
        assert "under way" in policy_client.receive(second)["error"]
        ledger.go.set()
        assert policy_client.receive(first) == {"text": "at last", "stop": "stop"}
        policy_client.send(second, request("a"))
        assert policy_client.receive(second)["text"] == "at last"


def test_closing_the_door_ends_who_waits_for_a_reply():
    ledger = WaitingLedger()
    server = PolicyServer(ledger)
    with ThreadPoolExecutor(1) as pool, PolicyClient(server.address, "a") as policy:
        waiting = pool.submit(policy.reply, say("x"))
        assert ledger.asked.wait(10)
        server.close()
        with pytest.raises(PolicyError):
            waiting.result(10)
        ledger.go.set()
    with (
        pytest.raises(PolicyError, match="no connection"),
        PolicyClient(server.address, "a") as policy,
    ):
        policy.reply(say("x"))


def test_too_long_an_observation_is_a_policy_error(server):
    with (
        PolicyClient(server.address, "a") as policy,
        pytest.raises(PolicyError, match="longer than"),
    ):
        policy.reply(say("x" * policy_client.MAX_FRAME_BYTES))
    assert still_serves(server)


def test_the_token_has_128_bits_and_is_not_shown(server):
    assert len(server.address.token) == 22  # 16 bytes in base64
    assert server.address.token not in repr(server.address)
    assert server.address.token not in json.dumps(str(PolicyClient(server.address, "a").__dict__))
