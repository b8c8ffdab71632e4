"""ROCK's model service in its local mode: an agent's calls of a language model wait for the answers
that the trainer gives with `anti_call_llm`.

In ROCK it is a program in the sandbox, and a file that both sides poll carries calls and answers,
between marks in the text. Here it is outside: the agent's connections come through a relay, and
each call waits for the answer with its number.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable

import h11

from ale_jax.sandbox.api import SandboxError
from ale_jax.sandbox.link import Stream

SESSION_END = "SESSION_END"  # what the trainer gets in place of a call once the agent has ended
MAX_HELD = 16 << 20  # bytes of calls that are on their way or wait, of one sandbox
MAX_HEAD = 32 << 10  # bytes
ENDED = 500  # the status that ROCK has for a call without an answer

Answer = tuple[int, str]  # status, JSON


class ModelCalls:
    """The calls of one sandbox, numbered from 1 in the order in which they came; each gets the
    answer with its number, in whichever order the answers come."""

    def __init__(self):
        self._calls: dict[int, str] = {}
        self._answers: dict[int, asyncio.Future[str]] = {}
        self._last = 0
        self._changed = asyncio.Event()
        self._end: SandboxError | str = ""

    async def ask(self, call: str) -> Answer:
        """The answer to a call, which is JSON."""
        if self._end:
            return ENDED, json.dumps({"detail": "the session has ended"})
        self._last += 1
        number, answer = self._last, asyncio.get_running_loop().create_future()
        self._calls[number], self._answers[number] = call, answer
        self._change()
        try:
            return 200, await answer
        except SandboxError as error:
            return ENDED, json.dumps({"detail": str(error)})

    async def anti_call(self, index: int, answer: str | None) -> str:
        """Answers call `index`, unless it has its answer, and returns the next one, or SESSION_END.

        index: 0: there is none to answer.

        Errors: ValueError; SandboxError if the calls have ended with a failure.
        """
        if index < 0 or (answer is None) != (index == 0):
            raise ValueError(f"index {index} needs {'an' if index > 0 else 'no'} answer")
        if index:
            self._settle(index, answer)
        while index + 1 not in self._calls:
            if isinstance(self._end, SandboxError):
                raise self._end
            if self._end:
                return self._end
            await self._changed.wait()
        return self._calls[index + 1]

    def end(self, reason: SandboxError | str = SESSION_END) -> None:
        """Calls without an answer fail. reason: what the trainer gets from now on."""
        self._end = self._end or reason
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(SandboxError("the session has ended"))
                waiting.exception()  # marks it as retrieved: its connection may be gone
        self._change()

    def _settle(self, index: int, answer: str) -> None:
        if index > self._last:
            raise ValueError(f"index {index}: there were {self._last} calls")
        if not isinstance(_json(answer), dict):
            raise ValueError(f"the answer to call {index} is no JSON object: {answer!r:.80}")
        self._calls.pop(index, None)
        waiting = self._answers.pop(index, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class ModelServer:
    """The agent's side: HTTP over the connections of a relay. watch: called with what is said to be
    the process id of an agent whose end is the end of the session; ValueError if it is none."""

    def __init__(self, calls: ModelCalls, watch: Callable[[object], None]):
        self._calls, self._watch = calls, watch
        self._held = 0

    async def serve(self, stream: Stream) -> None:
        """Serves one connection, a request after the other."""
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        with contextlib.suppress(h11.RemoteProtocolError):
            while http.our_state is h11.IDLE and await self._exchange(http, stream):
                if http.our_state is h11.DONE and http.their_state is h11.DONE:
                    http.start_next_cycle()

    async def _exchange(self, http: h11.Connection, stream: Stream) -> bool:
        """False once the agent has closed the connection."""
        request = await _event(http, stream)
        if not isinstance(request, h11.Request):
            return False
        body = bytearray()
        try:
            while isinstance(event := await _event(http, stream), h11.Data):
                body += event.data
                self._held += len(event.data)
                if self._held > MAX_HELD:
                    await _send(http, stream, (413, '{"detail": "too much at a time"}'))
                    return False
            await _send(http, stream, await self._answer(request, bytes(body)))
        finally:
            self._held -= len(body)
        return True

    async def _answer(self, request: h11.Request, body: bytes) -> Answer:
        route = request.method + b" " + request.target.partition(b"?")[0]
        if route == b"GET /health":
            return 200, '{"status": "healthy"}'
        content = _json(body)
        if route == b"POST /v1/chat/completions" and isinstance(content, dict):
            # Written anew, it has no line breaks and is valid Unicode.
            return await self._calls.ask(json.dumps(content))
        if route == b"POST /v1/agent/watch" and isinstance(content, dict):
            try:
                self._watch(content.get("pid"))
            except ValueError as error:
                return 400, json.dumps({"detail": str(error)})
            return 200, json.dumps({"status": "watching", "pid": content["pid"]})
        if route.startswith(b"POST /v1/") and content is None:
            return 400, '{"detail": "the body is no JSON object"}'
        return 404, '{"detail": "Not Found"}'


async def _event(http: h11.Connection, stream: Stream) -> h11.Event:
    while (event := http.next_event()) is h11.NEED_DATA:
        if http.they_are_waiting_for_100_continue:
            await stream.send(http.send(h11.InformationalResponse(status_code=100, headers=[])))
        piece = await stream.receive()
        http.receive_data(piece[1] if piece else b"")
    return event


async def _send(http: h11.Connection, stream: Stream, answer: Answer) -> None:
    status, text = answer
    content = text.encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(content)))]
    for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=content)):
        await stream.send(http.send(event))
    await stream.send(http.send(h11.EndOfMessage()))


def _json(text: str | bytes) -> object:
    """None if it is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
