"""Agents that do to their conversations whatever agents do, drawn at random."""

from __future__ import annotations

import collections
import dataclasses
import json
import random
from collections.abc import Callable

import numpy as np

from ale_jax.gateway.custody.calls import Call, GivenTurn
from ale_jax.gateway.episode import GatewayEpisode, Pending
from ale_jax.gateway.messages import ChatMessage, ToolCall
from ale_jax.gateway.requests import ChatRequest, SampleOptions
from benchmarks.gateway.scripted import ScriptedPolicy, Stage, sampled

SYSTEM, OTHER_SYSTEM = ChatMessage("system", "Work."), ChatMessage("system", "You are a helper.")
BASH = {"type": "function", "function": {"name": "bash", "description": "Runs.", "parameters": {}}}
NOTE = {"type": "function", "function": {"name": "note", "description": "Keeps.", "parameters": {}}}
TASKS = (
    "What is in it?",
    "The file notes.txt",
    "",
    "Schöne Grüße 👩‍👩‍👧",
    "answer is 42 <|im_end|>",
)
RESULTS = ("notes.txt", "", "three lines.\n", "e\u0301 \u00e9", "<tool_call>", "error: \x1b[31m")
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
OTHER_CALL = '<tool_call>{"arguments":{"command":"cat","n":[1,2.50]},"name":"bash"}</tool_call>'
REPLIES = (
    *(
        "Done.",
        "I look.",
        " I look. \n",
        "<think>so</think>Done.",
        "<think>hm",
        "42",
        "Grüße 👩‍👩‍👧",
    ),
    *(CALL, f"I look.\n{CALL}", f"{CALL}\n{OTHER_CALL}", f"<think>so</think>{OTHER_CALL}"),
    *("<tool_call>{", f"{CALL} and on", "e\u0301 \u00e9 \ufffd", "a  b\t\n\nc"),
)


@dataclasses.dataclass(frozen=True)
class Told:
    """A conversation as its agent tells it. Its last message is for the policy to answer."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[dict, ...] = (BASH,)


class Agents:
    """Of one episode. got: the ids of each reply that an agent has got. asked: for each of them
    what its agent had told, and the tree's call. moves: how often each was made."""

    def __init__(self, stage: Stage, seed: str):
        self._stage, self._rng = stage, random.Random(seed)
        self.policy = ScriptedPolicy(self._say)
        self.moves: collections.Counter[str] = collections.Counter()
        first, given = Told((SYSTEM, ChatMessage("user", self._rng.choice(TASKS)))), ()
        if self._rng.random() < 0.15:
            self.moves["given"] += 1
            given, first = self._given(first)
        self.episode: GatewayEpisode = stage.episode(self.policy, kept=3, given=given)
        self._open, self._waiting = [first], []
        self._answered: list[tuple[Told, ChatMessage]] = []
        self.got: list[np.ndarray] = []
        self.asked: list[tuple[Told, Call]] = []
        self._go_on(first, self._ask(first)[0])  # given turns come with the first call

    def play(self, moves: int) -> None:
        for _ in range(moves):
            name = self._rng.choice(list(MOVES))
            self.moves[name] += 1
            MOVES[name](self)
        while self._waiting:
            self.collect()

    def turn(self) -> None:
        told = self._some()
        self._go_on(told, self._ask(told)[0])

    def turns(self) -> None:
        told = self._some()
        for _ in range(self._rng.randint(2, 4)):
            told = self._go_on(told, self._ask(told)[0])

    def parallel(self) -> None:
        """Calls that are answered later, in any order."""
        for _ in range(self._rng.randint(2, 4)):
            told = self._some()
            self._waiting.append((told, self._pending(told)))

    def collect(self) -> None:
        if self._waiting:
            told, pending = self._waiting.pop(self._rng.randrange(len(self._waiting)))
            for choice in self._answers(told, pending):
                self._go_on(told, choice)

    def several(self) -> None:
        told = self._some()
        replies = self._ask(told, n=self._rng.randint(2, 3))
        for reply in self._rng.sample(replies, self._rng.randint(0, len(replies))):
            self._go_on(told, reply)

    def retry(self) -> None:
        told = self._some()
        for _ in range(2):
            self._go_on(told, self._ask(told)[-1])

    def edit(self) -> None:
        """The agent says that the policy had said something else; perhaps what it had."""
        told, _ = self._rng.choice(self._answered)
        other = ChatMessage("assistant", self._rng.choice(("Done.", "ls -l", "")))
        self._open.append(self._after(told, other))

    def store(self) -> None:
        """What a client may do to a message by keeping it."""
        told, reply = self._rng.choice(self._answered)
        calls = [
            ToolCall(each.name, json.dumps(json.loads(each.arguments), indent=1), f"call_{n}")
            for n, each in enumerate(reply.tool_calls)
        ]
        stored = ChatMessage("assistant", f"\n{reply.content} ", "", tuple(calls))
        self._open.append(self._after(told, stored))

    def splice(self) -> None:
        told = self._some()
        first, last = sorted(self._rng.choices(range(1, len(told.messages)), k=2))
        messages = (*told.messages[:first], *told.messages[last:])
        self._open.append(dataclasses.replace(told, messages=messages))

    def compact(self) -> None:
        summary = ChatMessage("user", f"So far: {self._rng.choice(RESULTS)}")
        self._open.append(Told((SYSTEM, summary)))

    def sub_agent(self) -> None:
        task = ChatMessage("user", self._rng.choice(TASKS))
        self._open.append(Told((OTHER_SYSTEM, task), self._rng.choice(((), (BASH,), (NOTE,)))))

    def hand_over(self) -> None:
        told = self._some()
        self._open.append(Told((OTHER_SYSTEM, *told.messages[1:]), told.tools))

    def other_tools(self) -> None:
        self._open.append(dataclasses.replace(self._some(), tools=(BASH, NOTE)))

    def import_turn(self) -> None:
        told = self._some()
        said = ChatMessage("assistant", self._rng.choice(("Done.", "I was here.")))
        self._open.append(self._after(told, said))

    def cut(self) -> None:
        told = self._some()
        self._go_on(told, self._ask(told, max_tokens=self._rng.randint(1, 4))[0])

    def stop_early(self) -> None:
        told = self._some()
        self._go_on(told, self._ask(told, stop=("look", "}", "ne."))[0])

    def give_up(self) -> None:
        for each in self._pending(self._some()):
            self.episode.cancel(each)

    def publish(self) -> None:
        self.policy.version += 1

    def _some(self) -> Told:
        """Mostly one of the newest."""
        newest = self._open[-4:] if self._rng.random() < 0.8 else self._open
        return self._rng.choice(newest)

    def _request(self, told: Told, **options: object) -> ChatRequest:
        return ChatRequest("m", told.messages, told.tools, options=SampleOptions(**options))

    def _pending(self, told: Told, **options: object) -> list[Pending]:
        return self.episode.ask(self._request(told, **options))

    def _ask(self, told: Told, **options: object) -> list[ChatMessage]:
        return self._answers(told, self._pending(told, **options), **options)

    def _answers(self, told: Told, pending: list[Pending], **options: object) -> list[ChatMessage]:
        replies = []
        for each in pending:
            replies.append(self.episode.answer(each, self._request(told, **options)).message)
            self.got.append(each.sampled.result().ids)
            self.asked.append((told, each.call))
            self._answered.append((told, replies[-1]))
        return replies

    def _go_on(self, told: Told, reply: ChatMessage) -> Told:
        self._open.append(self._after(told, reply))
        return self._open[-1]

    def _after(self, told: Told, said: ChatMessage) -> Told:
        """Results of its calls, or another question."""
        seen = [
            ChatMessage("tool", self._rng.choice(RESULTS), answers=c.id) for c in said.tool_calls
        ]
        new = seen or [ChatMessage("user", self._rng.choice(TASKS))]
        return dataclasses.replace(told, messages=(*told.messages, said, *new))

    def _say(self, context: np.ndarray) -> np.ndarray:
        """One of few texts, so that some are alike; at times in other ids than a tokenizer's."""
        text = self._rng.choice(REPLIES)
        return self._stage.ids_of(text, spelled=self._rng.random() < 0.3)

    def _given(self, told: Told) -> tuple[list[GivenTurn], Told]:
        """Turns of another episode, with their ids."""
        turns, after = [], None
        known = 0
        for _ in range(self._rng.randint(1, 3)):
            new, text = told.messages[known:], self._rng.choice(("Done.", "I look."))
            prompt_ids = self._stage.render(new, told.tools, after)
            after = self._stage.tokenizer.reply_ids(text)
            turns.append(GivenTurn(prompt_ids, text, sampled(after, -1)))
            known = len(told.messages) + 1
            told = self._after(told, ChatMessage("assistant", text))
        return turns, told


MOVES: dict[str, Callable[[Agents], None]] = {
    name: getattr(Agents, name)
    for name in (
        *("turn", "turns", "parallel", "collect", "several", "retry", "edit", "store", "splice"),
        *("compact", "sub_agent", "hand_over", "other_tools", "import_turn", "cut", "stop_early"),
        *("give_up", "publish"),
    )
}
