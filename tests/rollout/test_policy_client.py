"""Our own loop's way to the policy: through the gateway, over real connections."""

import contextlib
import socket
import threading
import time
from concurrent.futures import Future

import numpy as np
import pytest

from ale_jax.agent.api import PolicyError, Reply
from ale_jax.gateway.app import make_app
from ale_jax.gateway.custody.token_tree import TokenTree
from ale_jax.gateway.episode import GatewayEpisode
from ale_jax.gateway.episodes import Episodes
from ale_jax.gateway.formats.json_calls import Hermes
from ale_jax.gateway.language import Language
from ale_jax.gateway.server import served
from ale_jax.rollout import policy_client
from ale_jax.rollout.policy_client import PolicyClient
from ale_jax.worlds.api import Message
from tests.gateway.fake_policy import EngineEnded, FakePolicy, Written
from tests.gateway.speech import read, render, sample

CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
FIRST = [Message("system", "Work."), Message("user", "task")]
SEEN = [Message("tool", "a.txt")]


class Gateway:
    def __init__(self, say):
        self.episodes, self.policy, self.url = Episodes(), FakePolicy(say), ""

    def open(self):
        keys = lambda number: np.array([0, number], np.uint32)  # noqa: E731
        language = Language(Hermes(), lambda ids: read([4, *ids])[0][1])
        return self.episodes.open(GatewayEpisode(TokenTree(render), self.policy, language, keys))


@contextlib.contextmanager
def gateway(say):
    opened = Gateway(say)
    with served(make_app(opened.episodes, "policy")) as opened.url:
        yield opened


def test_a_conversation_continues_what_was_sampled():
    with gateway(lambda messages: f"<think>hm</think>{len(messages)}{CALL}") as opened:
        token = opened.open()
        client = PolicyClient(opened.url, token)
        first, second = client.reply(FIRST), client.reply(SEEN)
        # The loop finds calls in the text itself, so it is given all of it.
        assert first == Reply(f"<think>hm</think>2{CALL}", "stop")
        assert second.text.startswith("<think>hm</think>4")
        (branch,) = opened.episodes.end(token, "all")
    assert [call.reply.content for call in branch.calls] == [first.text, second.text]
    assert read(opened.policy.asked[1][1])[0] == ("tool", "a.txt"), "only this is new"


def test_why_a_reply_ended_is_told(monkeypatch):
    with gateway(lambda messages: "reply") as opened:
        finish = iter([("length", "rep"), ("context_full", "re"), ("context_full", "")])

        def reply(conversation, new_ids, options, key, watch):
            (stop, text), future = next(finish), Future()
            future.set_result(Written(sample(text, 0, cut=True), stop))
            return future

        monkeypatch.setattr(opened.policy, "reply", reply)
        client = PolicyClient(opened.url, opened.open())
        assert client.reply(FIRST) == Reply("rep", "length")
        assert client.reply(SEEN) == Reply("re", "length")
        assert client.reply(SEEN) == Reply("", "context_full")


def test_an_ended_episode_is_a_policy_error():
    with gateway(lambda messages: "reply") as opened:
        token = opened.open()
        client = PolicyClient(opened.url, token)
        client.reply(FIRST)
        opened.episodes.end(token, "all")
        with pytest.raises(PolicyError, match="the episode has ended"):
            client.reply(SEEN)


def test_an_episode_that_ends_meanwhile_ends_the_wait():
    with gateway(lambda messages: None) as opened:
        token = opened.open()
        failed = []

        def wait():
            try:
                PolicyClient(opened.url, token).reply(FIRST)
            except PolicyError as error:
                failed.append(str(error))

        waiting = threading.Thread(target=wait)
        waiting.start()
        while not opened.policy.asked:
            time.sleep(0.01)
        opened.episodes.end(token, "all")
        waiting.join(10)
    assert failed == ["the policy did not answer: the episode has ended"]


def test_an_engine_that_is_gone_is_a_policy_error(monkeypatch):
    with gateway(lambda messages: "reply") as opened:

        def gone(*_):
            raise EngineEnded("engine closed")

        monkeypatch.setattr(opened.policy, "reply", gone)
        with pytest.raises(PolicyError, match="the policy's engine does not answer"):
            PolicyClient(opened.url, opened.open()).reply(FIRST)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops",
        b"not HTTP\r\n\r\n",
    ],
)
def test_what_is_no_answer_is_a_policy_error(answer):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        with pytest.raises(PolicyError):
            PolicyClient(url, "token").reply(FIRST)


def test_a_gateway_that_is_not_there_is_a_policy_error():
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
    with pytest.raises(PolicyError, match=r"no answer of the policy at 127\.0\.0\.1"):
        PolicyClient(url, "token").reply(FIRST)


def test_a_connection_is_used_again_unless_it_was_silent_for_long(monkeypatch):
    opened_now = []
    real = socket.create_connection

    def connect(*args, **kwargs):
        opened_now.append(real(*args, **kwargs))
        return opened_now[-1]

    monkeypatch.setattr(socket, "create_connection", connect)
    with gateway(lambda messages: "reply") as opened:
        with PolicyClient(opened.url, opened.open()) as client:
            client.reply(FIRST)
            client.reply(SEEN)
            assert len(opened_now) == 1
            monkeypatch.setattr(policy_client, "SILENT_S", -1.0)
            client.reply(SEEN)
            assert len(opened_now) == 2
        assert [each.fileno() for each in opened_now] == [-1, -1], "closed with the episode"


def test_only_the_connection_has_to_come_in_time_and_not_the_reply(monkeypatch):
    """An engine may have to compile first, which takes minutes."""
    monkeypatch.setattr(policy_client, "CONNECT_S", 0.2)
    with gateway(lambda messages: time.sleep(0.5) or "reply") as opened:
        with PolicyClient(opened.url, opened.open()) as client:
            assert client.reply(FIRST) == Reply("reply", "stop")
