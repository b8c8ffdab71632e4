"""Are the longest replies lost to clients that do not wait?

A client hangs up if it hears nothing for some seconds, or cuts each try after some seconds and says
of the next one that it is a retry. The policy first thinks, which can be told, and then writes a
call, of which nothing can be told before its end. An episode is lost if its client does not get a
reply, if it gets one that is not trained on, or if the episode as a whole is not.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from ale_jax.gateway.answers import GONE_S
from ale_jax.gateway.app import make_app
from ale_jax.gateway.kept_calls import COUNT_HEADER
from ale_jax.gateway.server import served
from ale_jax.model.tokenizer import ChatTokenizer
from benchmarks.gateway.plan import Plan
from benchmarks.gateway.scripted import small_tokenizer
from benchmarks.gateway.timed import NAME, Training, is_trained_on

PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}}
TOOL = {"name": "bash", "description": "Runs a command.", "parameters": PARAMETERS}
TASK = [{"role": "user", "content": "What is in it?"}]
# What each API is asked.
ASKED: dict[str, dict[str, Any]] = {
    "/chat/completions": {
        "messages": TASK,
        "tools": [{"type": "function", "function": TOOL}],
    },
    "/responses": {"input": TASK, "tools": [{"type": "function"} | TOOL]},
    "/messages": {
        "messages": TASK,
        "max_tokens": 10_000,
        "tools": [{"name": "bash", "input_schema": PARAMETERS}],
    },
}
TRIES = 3
AGAIN_S = 2 * GONE_S  # of a later reply: by then the gateway has noticed that a client has gone
WAIT_S = 60.0  # for what should never take as long
NUMBER = re.compile(r"reply-(\d+)")


class HungUp(Exception):
    """The client did not wait for the end."""


@dataclasses.dataclass(frozen=True)
class Client:
    """path: of its API. silent_s: without an event that has data, after which it hangs up. try_s:
    after which it cuts a try, and asks again."""

    path: str
    stream: bool
    silent_s: float = WAIT_S
    try_s: float = WAIT_S

    def ask(self, url: str) -> str:
        """Returns all that it got. HungUp if no try came to an end."""
        for number in range(TRIES):
            try:
                return "".join(self._try(url, number))
            except httpx.ReadTimeout as error:
                if self.try_s == WAIT_S:
                    raise HungUp("it does not ask again") from error
        raise HungUp(f"after {TRIES} tries")

    def _try(self, url: str, number: int) -> Iterator[str]:
        headers = {"Authorization": f"Bearer {NAME}"}
        if number:
            headers[COUNT_HEADER] = f"{number}"
        asked = {"model": "policy", "stream": self.stream} | ASKED[self.path]
        begun = heard = time.monotonic()
        limit = min(self.silent_s, self.try_s)
        asking = httpx.stream("POST", url + self.path, json=asked, headers=headers, timeout=limit)
        with asking as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                now = time.monotonic()
                if now - heard > self.silent_s or now - begun > self.try_s:
                    raise httpx.ReadTimeout("nothing but comments, or too late")
                if not self.stream or line.startswith("data:"):
                    heard = now
                    yield line


def measure(plan: Plan) -> dict[str, Any]:
    tokenizer = small_tokenizer()
    slow = [Client(path, True, silent_s=plan.patience_s) for path in ASKED]
    ways = itertools.product(ASKED, (False, True))
    announced = [Client(*way, try_s=plan.reply_s / 2) for way in ways]
    clients = [*slow, *announced]
    with ThreadPoolExecutor(len(clients)) as threads:
        found = list(threads.map(lambda each: lost(tokenizer, each, plan.reply_s), clients))
    return {
        "slow_stream_reply_s": plan.reply_s,
        "slow_stream_patience_s": plan.patience_s,
        "slow_stream_tried": len(slow),
        "slow_stream_lost": sum(map(bool, found[: len(slow)])),
        "announced_retries_tried": len(announced),
        "announced_retries_lost": sum(map(bool, found[len(slow) :])),
        "impatient_reasons": sorted(filter(None, found)),
    }


def lost(tokenizer: ChatTokenizer, client: Client, reply_s: float) -> str:
    """Returns why an episode is lost; "" if it is not. reply_s: of the first reply."""
    training = Training(tokenizer, lambda number: (_reply(number), AGAIN_S if number else reply_s))
    how = f"{client.path}{' streamed' * client.stream}"
    with served(make_app(training.ledger.episodes, "policy")) as url:
        try:
            numbers = NUMBER.findall(client.ask(url))
        except (HungUp, httpx.HTTPError) as error:
            return f"{how}: {type(error).__name__}: {error}"
    trajectory, written = training.end(), training.engine.written
    if not numbers or not is_trained_on(trajectory, written[int(numbers[-1])]):
        return f"{how}: {trajectory.episode.status.value}: {trajectory.episode.detail}"
    return ""


def _reply(number: int) -> str:
    """As much of calls as of thoughts. A retry may get other words."""
    call = {"name": "bash", "arguments": {"command": f"cat reply-{number}" + " and more" * 20}}
    thoughts = "What is in it? I look at the file. " * 6
    return f"<think>\n{thoughts}\n</think>\n\n<tool_call>\n{json.dumps(call)}\n</tool_call>"
