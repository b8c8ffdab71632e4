"""Are users warned of agents that rewrite their history, and of no others?

Each reply of such an agent is trained in a context of its own. Agents that only add behind what was
told have one conversation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from ale_jax.gateway.messages import ChatMessage
from ale_jax.gateway.requests import ChatRequest
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.system.reply_metrics import BRANCHING, reply_metrics
from ale_jax.system.run_logger import MOSTLY
from benchmarks.gateway.plan import Plan
from benchmarks.gateway.scripted import small_tokenizer
from benchmarks.gateway.timed import NAME, Training

TURNS = 6
WORK = ChatMessage("system", "Work.")

# From all that was said so far and the number of the turn to what the agent sends.
Tell = Callable[[Sequence[ChatMessage], int], ChatRequest]


def as_it_was(told: Sequence[ChatMessage], turn: int) -> ChatRequest:
    return ChatRequest("m", (WORK, *told))


def with_lines_below(told: Sequence[ChatMessage], turn: int) -> ChatRequest:
    return as_it_was(_of_the_policy(told, "{}\nIt has run."), turn)


def with_a_clock(told: Sequence[ChatMessage], turn: int) -> ChatRequest:
    return ChatRequest("m", (ChatMessage("system", f"It is {turn} o'clock."), *told))


def with_a_reminder(told: Sequence[ChatMessage], turn: int) -> ChatRequest:
    """At the end of the newest message alone."""
    *before, last = told
    return as_it_was([*before, dataclasses.replace(last, content=f"{last.content} Go on.")], turn)


def with_more_tools(told: Sequence[ChatMessage], turn: int) -> ChatRequest:
    names = [f"tool_{number}" for number in range(turn + 1)]
    tools = ({"type": "function", "function": {"name": n, "parameters": {}}} for n in names)
    return ChatRequest("m", (WORK, *told), tuple(tools))


def in_other_words(told: Sequence[ChatMessage], turn: int) -> ChatRequest:
    return as_it_was(_of_the_policy(told, "I said: {}"), turn)


FAITHFUL = (as_it_was, with_lines_below)
REWRITING = (with_a_clock, with_a_reminder, with_more_tools, in_other_words)


def measure(plan: Plan) -> dict[str, Any]:
    tokenizer = small_tokenizer()
    return {
        "rewriting_agents_tried": len(REWRITING),
        "rewriting_agents_warned": sum(is_warned_of(each, tokenizer) for each in REWRITING),
        "faithful_agents_tried": len(FAITHFUL),
        "faithful_agents_warned": sum(is_warned_of(each, tokenizer) for each in FAITHFUL),
    }


def is_warned_of(tell: Tell, tokenizer: ChatTokenizer) -> bool:
    """Whether the event `history_rewritten` is noted if all episodes are as this one."""
    training = Training(tokenizer, lambda number: (f"I look at line {number}.", 0.0))
    episode, told = training.ledger.episodes.find(NAME), [ChatMessage("user", "What is in it?")]
    for turn in range(TURNS):
        request = tell(told, turn)
        (pending,) = episode.ask(request)
        reply = episode.answer(pending, request).message
        told += [reply, ChatMessage("user", f"The file has line {turn}.")]
    return reply_metrics([training.end()])[BRANCHING] >= MOSTLY


def _of_the_policy(told: Sequence[ChatMessage], template: str) -> list[ChatMessage]:
    return [
        dataclasses.replace(each, content=template.format(each.content))
        if each.role == "assistant"
        else each
        for each in told
    ]
