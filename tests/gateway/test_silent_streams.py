"""Streams of which nothing can be told for long, and what a client gets meanwhile."""

import json

import httpx
import pytest

from ale_jax.gateway import streaming
from ale_jax.gateway.api import anthropic_messages
from tests.gateway.test_app import TOOLS, gateway_with
from tests.gateway.test_kept_calls import body, release

CHAT, TEXT, RESPONSES, MESSAGES = "/chat/completions", "/completions", "/responses", "/messages"
WAIT = [2, *(1000 + ord(letter) for letter in "wait"), 5, 4]
ASKED = {
    CHAT: body("wait") | {"tools": TOOLS},
    TEXT: {"prompt": WAIT},
    RESPONSES: {"input": "wait"},
    MESSAGES: body("wait") | {"max_tokens": 100},
}
SIGNS = 8  # that a client gets before anything else is written; with all that begins a stream


@pytest.fixture
def gateway(monkeypatch):
    monkeypatch.setattr(streaming, "SILENT_S", 0.01)
    with gateway_with() as gateway:
        yield gateway


def data_of(lines):
    """The events that have data, which is all that Codex counts."""
    for line in lines:
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def told(path, event):
    """What an event says, as (thoughts, content)."""
    if path == CHAT:
        (choice,) = event.get("choices") or [{"delta": {}}]
        return choice["delta"].get("reasoning_content", ""), choice["delta"].get("content", "")
    if path == TEXT:
        return "", "".join(choice["text"] for choice in event["choices"])
    if path == MESSAGES:
        delta = event.get("delta", {})
        return delta.get("thinking", ""), delta.get("text", "")
    kind, text = event["type"], event.get("delta", "")
    return text * kind.startswith("response.reasoning"), text * kind.startswith("response.output")


@pytest.mark.parametrize("begins", ["", "<think>hm"])
@pytest.mark.parametrize("path", ASKED)
def test_a_client_hears_of_a_call_while_nothing_can_be_told(gateway, path, begins):
    """It would hang up otherwise, and ask again, and so lose its longest replies."""
    gateway.policy.begins = begins
    token, texts, signs = gateway.open(), ["", ""], 0
    asked = ASKED[path] | {"stream": True}
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.stream("POST", gateway.url + path, json=asked, headers=headers, timeout=60) as got:
        for event in data_of(got.iter_lines()):
            more = told(path, event)
            signs += not any(more)
            texts = [text + new for text, new in zip(texts, more, strict=True)]
            if signs == SIGNS and not any(more):
                expected = ["", begins] if path == TEXT else [begins.removeprefix("<think>"), ""]
                assert texts == expected, "thoughts are told as they come"
                release(gateway, f"{begins} so</think>Yes." if begins else "Yes.")
    assert signs >= SIGNS
    thoughts = f"{begins} so</think>" if begins else ""
    whole = ["", f"{thoughts}Yes."] if path == TEXT else ["hm so" if begins else "", "Yes."]
    assert texts == whole
    (branch,) = gateway.episodes.end(token, "all")
    assert [call.reply.content for call in branch.calls] == whole[1:]


def test_a_long_silence_is_more_than_pings(gateway, monkeypatch):
    """Claude Code counts none of them."""
    monkeypatch.setattr(anthropic_messages, "MOST_PINGS", 2)
    gateway.policy.begins, kinds = "", []
    headers = {"Authorization": f"Bearer {gateway.open()}"}
    ask = {"json": ASKED[MESSAGES] | {"stream": True}, "headers": headers, "timeout": 60}
    with httpx.stream("POST", gateway.url + MESSAGES, **ask) as got:
        for event in data_of(got.iter_lines()):
            kinds.append(event["type"])
            if kinds.count("content_block_delta") == 2 and kinds[-1] == "content_block_delta":
                release(gateway, "Yes.")
    delta = "content_block_delta"
    assert kinds[:6] == ["message_start", "ping", "ping", "content_block_start", delta, delta]
