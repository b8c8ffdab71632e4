"""The token tree of an episode: the ids of every call to the policy, and which call it continues.

Agents send their whole conversation with each call, branch off, start sub-agents, shorten what was
said, and edit it. Messages propose which earlier call a new one continues; ids decide: what the
policy wrote keeps the ids that were sampled, and what comes after it is appended to them. Where an
agent's message differs from what was sampled, the tree forks, and the agent's version is context.

    tree = TokenTree(render)
    call = tree.begin(messages, tools)  # the engine reads call.context_ids()
    tree.finish(call, reply, sampled)
    tree.branches("all")
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from ale_jax.gateway.custody.additions import with_additions
from ale_jax.gateway.custody.calls import Branch, Call, GivenTurn, SampledTokens
from ale_jax.gateway.custody.retries import abandoned
from ale_jax.gateway.messages import (
    ChatMessage,
    ToolCall,
    message_key,
    path_keys,
    text_key,
    tools_key,
    without_volatile_headers,
)
from ale_jax.worlds.replies import Reply

NO_VARIABLES: Mapping[str, Any] = {}
BranchChoice = Literal["all", "longest", "leaf"]


class Render(Protocol):
    """How a family of models writes messages."""

    def __call__(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[dict[str, Any]],
        after: np.ndarray | None,
        reply: ChatMessage | None = None,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> np.ndarray:
        """The ids of `messages`, up to the policy's next token.

        after: the reply of the policy that they follow; None if they begin a conversation. If it
        was cut off, its end comes first. reply: what it says. variables: of the chat template.

        ValueError if the model's template refuses them.
        """


@dataclasses.dataclass
class TreeCounts:
    """What a token tree counts: what `CallCounts` has, and ambiguous calls, which continue one of
    several replies with the same text and other ids."""

    forks: int = 0
    edited: int = 0
    ambiguous: int = 0
    lost: int = 0
    left_out: int = 0


class TokenTree:
    """The calls of one episode, and which of them each one continues. Thread-safe."""

    def __init__(self, render: Render, remembered: int | None = None):
        """remembered: how many calls are known at most; the oldest that nothing continues is
        forgotten first. None: all."""
        self._render, self._remembered = render, remembered
        self._lock = threading.Lock()
        self._calls: list[Call] = []  # those that are answered, in the order of their answers
        self._by_key: dict[bytes, list[Call]] = {}
        self._by_start: dict[bytes, list[Call]] = {}
        self._ticks = itertools.count(1)
        self._roots = 0  # of these calls, those that begin a conversation
        self._lost: list[Call] = []  # the newest ones, also those that were abandoned
        self._lost_last: set[Call] = set()  # calls that were lost since one was begun
        self.counts = TreeCounts()

    def begin(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[dict[str, Any]] = (),
        is_retry: bool = False,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> Call:
        """Returns a call with these messages, which are the whole conversation as the agent tells
        it. is_retry: as in `Call`. variables: of the chat template.

        ValueError if there are none, or the policy's turn is over.
        """
        call = self.place(messages, tools, variables)
        call.is_retry = is_retry
        with self._lock:
            self._count(call)
        return call

    def begin_text(self, prompt_ids: np.ndarray, is_retry: bool = False) -> Call:
        """Returns a call that goes on with a text, and belongs to no conversation."""
        ids = np.asarray(prompt_ids, np.int32)
        call = Call(None, (), ids, text_key(ids), is_retry=is_retry)
        with self._lock:
            self._count(call)
        return call

    def place(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[dict[str, Any]] = (),
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> Call:
        """Returns a call as `begin` does, without counting it, as it is not made."""
        messages = without_volatile_headers(messages)
        if not messages or messages[-1].role == "assistant":
            raise ValueError("the last message must be one that the policy can answer")
        start = tools_key(tools, variables)
        keys = path_keys(start, messages)
        with self._lock:
            _, known = self._parent(keys)
        new = messages[known:]
        if any(message.role == "assistant" for message in new):
            with self._lock:
                told = with_additions((start, *keys)[known], new, self._by_start)
            if told != new:
                told = (*messages[:known], *told)
                # Unless the template refuses two messages of the policy in a row.
                with contextlib.suppress(ValueError):
                    return self._placed(path_keys(start, told), told, tools, variables)
        return self._placed(keys, messages, tools, variables)

    def _placed(
        self,
        keys: Sequence[bytes],
        messages: Sequence[ChatMessage],
        tools: Sequence[dict[str, Any]],
        variables: Mapping[str, Any],
    ) -> Call:
        """keys: of the messages, as from `path_keys`. ValueError as from `Render`."""
        with self._lock:
            parent, known = self._parent(keys)
        new = tuple(messages[known:])
        after, reply = (None, None) if parent is None else (parent.answer.ids, parent.reply)
        prompt_ids = np.asarray(self._render(new, tools, after, reply, variables), np.int32)
        pairs = zip(keys[known:], messages[known + 1 :])
        retold = tuple((key, message) for key, message in pairs if message.role == "assistant")
        return Call(parent, new, prompt_ids, keys[-1], has_tools=bool(tools), retold=retold)

    def finish(
        self,
        call: Call,
        reply: ChatMessage,
        sampled: SampledTokens,
        stop: str = "stop",
        stop_text: str = "",
    ) -> None:
        """Records what the policy has answered. reply: as it is sent to the agent. stop, stop_text:
        as in `Call`."""
        assert call.sampled is None, "a call is answered once"
        with self._lock:
            call.reply, call.sampled, call.stop, call.stop_text = reply, sampled, stop, stop_text
            call.ended = next(self._ticks)
            (call.key,) = path_keys(call.start, [reply])
            self._calls.append(call)
            self._by_key.setdefault(call.key, []).append(call)
            self._by_start.setdefault(call.start, []).append(call)
            self._add_child(call.parent, 1)
            self._abandon()
            if self._remembered is not None and len(self._calls) > self._remembered:
                self._forget(next(each for each in self._calls if not each.children))

    def insert_given(
        self,
        turns: Sequence[GivenTurn],
        messages: Sequence[ChatMessage],
        tools: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Inserts turns that were not sampled here, so that the conversation `messages`, which
        begins with them, continues their ids.

        ValueError if it begins with other replies.
        """
        parent, begin = None, 0
        replies = [n for n, message in enumerate(messages) if message.role == "assistant"]
        told = [messages[n] for n in replies[: len(turns)]]
        if len(told) < len(turns) or not all(map(_says, told, [turn.text for turn in turns])):
            raise ValueError(f"the conversation must begin with the {len(turns)} replies given")
        for n, turn in zip(replies, turns, strict=False):
            start = path_keys(tools_key(tools), messages[:n])[-1]
            call = Call(parent, tuple(messages[begin:n]), turn.prompt_ids, start, is_given=True)
            self.finish(call, messages[n], turn.reply)
            parent, begin = call, n + 1

    def lose(self, call: Call, was_sent: bool = False) -> None:
        """Says that the agent may not have got the answer, or that there was none. was_sent: as in
        `Call`."""
        with self._lock:
            if not call.lost:
                call.lost, call.was_sent, call.lost_at = True, was_sent, next(self._ticks)
                self._lost.append(call)
                self._abandon()
            self._lost_last.add(call)

    def find(self, call: Call) -> None:
        """Says that the agent has the answer after all."""
        with self._lock:
            if call.lost:
                call.lost = call.abandoned = False
                self._lost.remove(call)
                self._abandon()
            self._lost_last.discard(call)

    @property
    def num_lost_last(self) -> int:
        """The lost calls after which the agent has made no other one."""
        with self._lock:
            return sum(not call.abandoned for call in self._lost_last)

    def branches(self, choice: BranchChoice) -> list[Branch]:
        """Returns what to train on, the branch with the most replies first. all: every reply once;
        longest: the branch with the most tokens; leaf: that of the last answer."""
        with self._lock:
            leaves = [call for call in self._calls if not (call.children or call.is_given)]
            leaves.sort(key=lambda call: -len(call.path()))
            if leaves and choice == "longest":
                leaves = [max(leaves, key=lambda call: call.num_tokens)]
            elif leaves and choice == "leaf":
                leaves = [self._calls[-1]]
            found = list(_without_repeats(leaves))
            delivered = {id(call) for branch in found for call in branch.calls}
            left = (c for c in self._calls if not (c.is_given or id(c) in delivered))
            self.counts.left_out = sum(len(call.answer.ids) for call in left)
            return found

    def answered(self) -> list[Call]:
        """Returns the calls that were sampled in this episode, in the order of their answers."""
        with self._lock:
            return [call for call in self._calls if not call.is_given]

    @property
    def start_version(self) -> int | None:
        """The version of the weights that sampled the oldest first token; None before there is a
        reply."""
        replies = [call.answer for call in self.answered()]
        return min((int(each.version[0]) for each in replies), default=None)

    def _forget(self, call: Call) -> None:
        self._calls.remove(call)
        for known, key in ((self._by_key, call.key), (self._by_start, call.start)):
            known[key].remove(call)
            if not known[key]:
                del known[key]
        self._add_child(call.parent, -1)

    def _add_child(self, parent: Call | None, number: int) -> None:
        if parent is None:
            self._roots += number
        else:
            parent.children += number

    def _parent(self, keys: Sequence[bytes]) -> tuple[Call | None, int]:
        """The call whose conversation, reply included, is the longest beginning of that with these
        keys, and its length in messages."""
        for length in range(len(keys) - 1, 0, -1):
            if same := self._by_key.get(keys[length - 1]):
                return _read(same)[-1], length
        return None, 0

    def _has_double(self, call: Call) -> bool:
        """Whether the agent may have got another reply with the same text and other ids."""
        others = _read(self._by_key.get(call.key, [call]))
        return any(not np.array_equal(each.answer.ids, call.answer.ids) for each in others)

    def _abandon(self) -> None:
        """Finds out which lost calls were asked for again."""
        if self._remembered is not None:
            del self._lost[: -self._remembered]
        gone = abandoned(self._lost, self._calls) if self._lost else []
        for call in self._lost:
            call.abandoned = call in gone
        self.counts.lost = len(self._lost) - len(gone)

    def _count(self, call: Call) -> None:
        call.begun = next(self._ticks)
        self._lost_last.clear()
        parent = call.parent
        # What stands right behind a reply was added to it.
        told = call.messages[parent is not None :]
        self.counts.edited += any(message.role == "assistant" for message in told)
        self.counts.ambiguous += parent is not None and self._has_double(parent)
        siblings = self._roots if parent is None else parent.children
        self.counts.forks += siblings > 0


def _says(message: ChatMessage, text: str) -> bool:
    """Whether a message tells a given reply, as it is or with its calls told apart."""
    reply = Reply(text)
    calls = tuple(ToolCall(call.name, json.dumps(call.arguments)) for call in reply.calls)
    apart = ChatMessage("assistant", reply.content, tool_calls=calls)
    told = message_key(ChatMessage("assistant", text)), message_key(apart)
    return message_key(message) in told


def _read(same: Sequence[Call]) -> Sequence[Call]:
    """Of calls whose replies are the same to the agent, those that it may have got; all, if it goes
    on from one though none should have reached it."""
    return [call for call in same if not call.abandoned] or same


def _without_repeats(leaves: Sequence[Call]) -> Iterator[Branch]:
    """The branches to these calls, each reply in the first one that has it."""
    seen: set[int] = set()
    for leaf in leaves:
        calls = tuple(leaf.path())
        shared = sum(call.is_given or id(call) in seen for call in calls)
        seen.update(map(id, calls))
        yield Branch(calls, shared)
