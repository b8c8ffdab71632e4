"""What the gateway does with requests that no client should send, and with replies that no policy
should write."""

from __future__ import annotations

import collections
import contextlib
import http.client
import json
import random
import re
import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from ale_jax.gateway.app import make_app
from ale_jax.gateway.episodes import Episodes
from ale_jax.gateway.server import served
from benchmarks.gateway.fuzz_requests import CHAT, Drawn, RequestMaker
from benchmarks.gateway.plan import Plan
from benchmarks.gateway.scripted import ScriptedPolicy, Stage, small_tokenizer

EPISODES, CLIENTS = 32, 4
TIMEOUT_S = 120.0
SECRET = re.compile(r"SECRET-(\d+)-[0-9a-f]+")
SEEN_IDS = 3_000  # of a conversation, at its beginning and its end, in which secrets are looked for
KEPT_FAULTS = 40
RESPONSE_ID = re.compile(rb"resp_[0-9a-f]{8,}")
# What a policy may write in place of a reply.
REPLIES = (
    *("", " ", "so", "<think>", "<think>a</think>", "<think></think>b", "<tool_call>", "{}", "\0"),
    '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>',
    '<tool_call>{"name": "bash", "arguments": {"command": "\\ud800"}}</tool_call>',
    '<tool_call>{"name": "\\udfff", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "bash", "arguments": {"\\ud800": 1}}</tool_call>',
    '<tool_call>{"name": "bash", "arguments": {"a": NaN}}</tool_call>',
    '<tool_call>{"name": "bash", "arguments": {"a": 1e999, "b": -Infinity}}</tool_call>',
    '<tool_call>{"name": "bash", "arguments": {"a": %s}}</tool_call>' % ("9" * 5_000),
    '<tool_call>{"name": "bash", "arguments": "{\\"a\\": Infinity}"}</tool_call>',
    '<tool_call>{"name": "bash", "arguments": {"a": %s}}</tool_call>' % ("[" * 300 + "]" * 300),
    '<tool_call>{"name": "bash", "arguments": {"a": %s}}</tool_call>' % ("[" * 900 + "]" * 900),
    '<tool_call>{"name": "bash", "arguments": {"a": 1, "a": 2}}</tool_call>',
    '<tool_call>{"name": "", "arguments": null}</tool_call><tool_call>[]</tool_call>',
)


def measure(plan: Plan) -> dict[str, Any]:
    with Fuzzed() as fuzzed:
        return fuzzed.run(plan.fuzz_requests, plan.seed)


class Fuzzed(contextlib.ExitStack):
    """A gateway with some episodes, each of which has a secret that its policy repeats."""

    def __init__(self) -> None:
        super().__init__()
        self.stage, self._episodes = Stage(small_tokenizer()), Episodes()
        self._policy = ScriptedPolicy(self._say)
        self.counts: collections.Counter[str] = collections.Counter()
        self.statuses: collections.Counter[int] = collections.Counter()
        self.faults: list[dict[str, Any]] = []
        self._responses: collections.deque[str] = collections.deque(maxlen=256)
        self._said, self._lock = random.Random(0), threading.Lock()

    def __enter__(self) -> Fuzzed:
        super().__enter__()
        app = make_app(self._episodes, "policy")
        self.secrets = [f"SECRET-{n}-{secrets.token_hex(8)}" for n in range(EPISODES)]
        self.tokens = [self._episodes.open(self.stage.episode(self._policy)) for _ in self.secrets]
        self.document = app.openapi()
        self.url = self.enter_context(served(app))
        return self

    def run(self, requests: int, seed: int) -> dict[str, Any]:
        maker = RequestMaker(self.document, self.secrets, seed)
        numbers, lock = iter(range(requests)), threading.Lock()

        def client() -> None:
            with contextlib.closing(Connection(self.url)) as connection:
                while True:
                    with lock:
                        number, known = next(numbers, None), list(self._responses)
                    if number is None:
                        return
                    self.judge(number, maker.draw(number, known), connection)

        with ThreadPoolExecutor(CLIENTS) as pool:
            for each in [pool.submit(client) for _ in range(CLIENTS)]:
                each.result()
        return self._figures(requests, maker.paths)

    def judge(self, number: int, drawn: Drawn, connection: Connection) -> None:
        """Sends a request, and counts what is wrong with its answer."""
        token = "no-such-token" if drawn.caller is None else self.tokens[drawn.caller]
        try:
            status, body = connection.post(drawn.path, drawn.body, token)
        except TimeoutError:
            return self._fault("hangs", number, drawn, f"no answer in {TIMEOUT_S} s")
        except (OSError, http.client.HTTPException) as error:
            return self._fault("broken", number, drawn, repr(error))
        self.statuses[status] += 1
        self._responses.extend(each.decode() for each in set(RESPONSE_ID.findall(body)))
        owners = {int(each) for text in said(body) for each in SECRET.findall(text)}
        self.counts["own"] += drawn.caller in owners
        if owners - {drawn.caller}:
            self._fault("leaks", number, drawn, f"secrets of {sorted(owners)}")
        if drawn.caller is None and status != 401:
            self._fault("admitted", number, drawn, str(status))
        try:
            told = [_status_of(event) for event in events(body)]
        except ValueError as error:
            self._fault("not_json", number, drawn, f"{status}: {error}: {body[:300]!r}")
            told = []
        if max([status, *told]) >= 500:
            self._fault("5xx", number, drawn, f"{status}: {body[:300]!r}")

    def _fault(self, kind: str, number: int, drawn: Drawn, what: str) -> None:
        with self._lock:
            self.counts[kind] += 1
            if len(self.faults) < KEPT_FAULTS:
                told = {
                    "number": number,
                    "kind": drawn.kind,
                    "path": drawn.path,
                    "what": what[:400],
                }
                self.faults.append({"fault": kind} | told)

    def _say(self, context: np.ndarray) -> np.ndarray:
        """Every secret that the policy can see, and something hostile."""
        ends = [context[:SEEN_IDS], context[-SEEN_IDS:]]
        seen = {m[0] for part in ends for m in SECRET.finditer(self.stage.tokenizer.decode(part))}
        with self._lock:
            hostile = self._said.choice(REPLIES)
        return self.stage.tokenizer.reply_ids(" ".join(sorted(seen)) + hostile)

    def _figures(self, requests: int, paths: list[str]) -> dict[str, Any]:
        calls = lost = 0
        for token in self.tokens:
            branches = self._episodes.end(token, "all")
            delivered = [id(c) for b in branches for c in b.calls[b.num_shared :]]
            calls, lost = calls + len(delivered), lost + len(delivered) - len(set(delivered))
        return {
            "fuzz_requests": requests,
            "fuzz_paths": paths,
            "fuzz_5xx": self.counts["5xx"],
            "fuzz_hangs": self.counts["hangs"],
            "fuzz_broken_answers": self.counts["broken"],
            "fuzz_answers_not_json": self.counts["not_json"],
            "fuzz_leaks": self.counts["leaks"],
            "fuzz_own_secrets_told": self.counts["own"],
            "fuzz_wrong_tokens_admitted": self.counts["admitted"],
            "fuzz_replies": calls,
            "fuzz_replies_delivered_twice": lost,
            "fuzz_statuses": {str(each): n for each, n in sorted(self.statuses.items())},
            "fuzz_faults": self.faults,
        }


def said(body: bytes) -> list[str]:
    """The text of an answer; of a stream also that of its pieces together."""
    found: dict[int, str] = collections.defaultdict(str)
    with contextlib.suppress(ValueError):
        for event in filter(lambda each: isinstance(each, dict), events(body)):
            for choice in event.get("choices", [event]):
                delta = choice.get("delta", "")
                text = (
                    delta if isinstance(delta, str) else delta.get("content") or delta.get("text")
                )
                found[choice.get("index", 0)] += text or ""
    return [body.decode(errors="replace"), *found.values()]


def events(body: bytes) -> Iterator[Any]:
    """The JSON of an answer, or of each event of a stream. ValueError if it is none."""
    text = body.decode()
    if not text.startswith(("event: ", "data: ")):
        yield json.loads(text, parse_constant=_refuse)
        return
    for line in text.split("\n"):
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "), parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not in JSON")


def _status_of(event: Any) -> int:
    """Of an error that an event tells; 0 if it tells none."""
    if not isinstance(event, dict):
        return 0
    told = event.get("error") or (event if event.get("type") == "error" else {})
    if told.get("type") == "api_error":
        return 500
    code = str(told.get("code", ""))
    return int(code) if code.isdigit() else 0


class Connection:
    """Of a client, kept open as long as the server does."""

    def __init__(self, url: str):
        address = urlsplit(url)
        self._http = http.client.HTTPConnection(address.hostname, address.port, timeout=TIMEOUT_S)

    def post(self, path: str, body: bytes, token: str) -> tuple[int, bytes]:
        kind = {"x-api-key": token} if path != CHAT else {"Authorization": f"Bearer {token}"}
        try:
            self._http.request("POST", path, body, {"Content-Type": "application/json"} | kind)
            response = self._http.getresponse()
            status, answer = response.status, response.read()
        except BaseException:
            self._http.close()
            raise
        if status >= 500:  # after which the server closes the connection, without saying so
            self._http.close()
        return status, answer

    def close(self) -> None:
        self._http.close()
