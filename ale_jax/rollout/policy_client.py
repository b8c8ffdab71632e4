"""The policy as our own agent loop calls it: through the gateway, as any other agent does."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import httptools

from ale_jax.agent.api import Message, PolicyError, Reply
from ale_jax.gateway.requests import CONTEXT_FULL
from ale_jax.worlds import replies
from ale_jax.worlds.replies import reply_text
from ale_jax.worlds.tools import Offer

CONNECT_S = 10.0
SILENT_S = 60.0  # the gateway closes a connection after three times as long
RECEIVE_BYTES = 1 << 16
CALL_ID = "000000000"  # of calls that the loop reads from the text: results must name one


class PolicyClient:
    """An `agent.api.Policy`: one conversation of an episode.

    A reply has no timeout. Only the controller knows whether its engine is compiling or has failed,
    and if the controller dies, the connection ends. A connection that was silent for long is not
    used again, as the gateway may be closing it.
    """

    def __init__(self, url: str, token: str, offer: Callable[[], Offer] = Offer):
        """url: of the API. token: the episode's. offer: the tools of its task; what it raises, the
        first reply raises."""
        self._url = urlsplit(url)
        self._token = token
        self._offer, self._tools = offer, dict[str, Any]()
        self._told: list[dict[str, Any]] = []
        self._open_calls: list[str] = []  # ids of those that have no result yet
        self._connection: socket.socket | None = None
        self._used_at = 0.0

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> PolicyClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def reply(self, new_messages: Sequence[Message]) -> Reply:
        if not self._told:
            # Without tools, the loop reads calls from the text itself.
            self._tools = self._offer().fields() or {"tool_choice": "none"}
        self._told += map(self._as_openai, new_messages)
        status, answer = self._post({"model": "", "messages": self._told, **self._tools})
        try:
            if status == 200:
                (choice,) = answer["choices"]
                return self._read(choice["message"], choice["finish_reason"])
            error = answer["error"]
        except (KeyError, TypeError, ValueError) as broken:
            raise PolicyError(f"not an answer of the gateway: {answer!r:.200}") from broken
        if error["code"] == CONTEXT_FULL:
            return Reply("", "context_full")
        raise PolicyError(f"the policy did not answer: {error['message']}")

    def _read(self, message: dict[str, Any], stop: str) -> Reply:
        self._told.append(message)
        calls = message.get("tool_calls", ())
        self._open_calls = [call["id"] for call in calls]
        told = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
        text = reply_text(message["content"] or "", message.get("reasoning_content", ""), told)
        return Reply(text, "length" if stop == "length" else "stop")

    def _as_openai(self, message: Message) -> dict[str, Any]:
        told = {"role": message.role, "content": message.content}
        has_tools = "tools" in self._tools
        if message.role == "assistant" and has_tools:  # of a prefix
            return self._with_calls(message.content)
        if message.role != "tool":
            return told
        if has_tools and not self._open_calls:  # of a reply without a call that could be read
            return told | {"role": "user"}
        return told | {"tool_call_id": self._open_calls.pop(0) if self._open_calls else CALL_ID}

    def _with_calls(self, text: str) -> dict[str, Any]:
        """A reply that was read before, as the API tells it."""
        reply = replies.Reply(text)
        self._open_calls = [f"{n:09d}" for n in range(len(reply.calls))]
        functions = (
            {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
            for call in reply.calls
        )
        calls = [
            {"id": id, "type": "function", "function": function}
            for id, function in zip(self._open_calls, functions, strict=True)
        ]
        told = {"role": "assistant", "content": reply.content, "reasoning_content": reply.thoughts}
        return told | ({"tool_calls": calls} if calls else {})

    def _post(self, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        try:
            return self._exchange(json.dumps(body).encode())
        except (OSError, httptools.HttpParserError, ValueError) as error:
            self.close()
            where = self._url.netloc
            raise PolicyError(f"no answer of the policy at {where}: {error!r}") from error

    def _exchange(self, body: bytes) -> tuple[int, dict[str, Any]]:
        """Posts the body; returns the answer's status and JSON. `http.client` would send head and
        body one after the other, and takes several times as long to read an answer's head."""
        head = (
            f"POST {self._url.path}/chat/completions HTTP/1.1",
            f"Host: {self._url.netloc}",
            f"Authorization: Bearer {self._token}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        )
        connection, answer = self._connected(), _Answer()
        connection.sendall("\r\n".join((*head, "", "")).encode() + body)
        while not answer.is_whole:
            data = connection.recv(RECEIVE_BYTES)
            if not data:
                raise ConnectionResetError("the gateway has closed the connection")
            answer.parser.feed_data(data)
        self._used_at = time.monotonic()
        if not answer.keeps_connection:
            self.close()
        return answer.parser.get_status_code(), json.loads(answer.body)

    def _connected(self) -> socket.socket:
        if time.monotonic() - self._used_at > SILENT_S:
            self.close()
        if self._connection is None:
            address = self._url.hostname, self._url.port
            self._connection = socket.create_connection(address, timeout=CONNECT_S)
            self._connection.settimeout(None)
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A controller whose machine has failed does not close its connections.
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return self._connection


class _Answer:
    """An answer of the gateway, in the parts that its parser finds."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.body = bytearray()
        self.is_whole = self.keeps_connection = False

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.is_whole = True
        # Afterwards, the parser has forgotten it.
        self.keeps_connection = self.parser.should_keep_alive()
