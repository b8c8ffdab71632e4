"""A policy whose words are given, in a real tokenizer's ids, and episodes of it."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future

import numpy as np

from ale_jax.engine.request import Sampled
from ale_jax.gateway.conversations import StopChecker
from ale_jax.gateway.custody.engine_policy import ChatRender, language_of
from ale_jax.gateway.custody.token_tree import TokenTree
from ale_jax.gateway.episode import EpisodeOptions, GatewayEpisode
from ale_jax.gateway.requests import SampleOptions
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe

WATCHED_EVERY = 8  # tokens, as an engine that decodes eight steps at a time
VOCABULARY = 512
WORDS = "The file notes.txt has three lines. I look. What is in it? Done, the answer is 42."

Say = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Written:
    """What the policy wrote, and what it had read before, as the engine's cache has it."""

    context: np.ndarray
    ids: np.ndarray
    version: int


@dataclasses.dataclass
class ScriptedPolicy:
    """say: from all ids of a conversation so far to the ids of the reply. version: of its weights.
    written: in the order in which the replies were begun. Thread-safe."""

    say: Say
    version: int = 0
    written: list[Written] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self._numbers, self._lock = itertools.count(), threading.Lock()
        self._contexts: dict[int, list[np.ndarray]] = {}

    def open(self) -> int:
        with self._lock:
            number = next(self._numbers)
            self._contexts[number] = []
        return number

    def reply(
        self,
        conversation: int,
        new_ids: np.ndarray,
        options: SampleOptions,
        key: np.ndarray,
        stop_checker: StopChecker | None,
    ) -> Future[Sampled]:
        with self._lock:
            context = self._contexts[conversation]
        context.append(np.asarray(new_ids, np.int32))
        read = np.concatenate(context)
        ids, stop = self.say(read), "stop"
        if options.max_tokens is not None and len(ids) > options.max_tokens:
            ids, stop = ids[: options.max_tokens], "length"
        if stop_checker is not None:
            ids = _watched(ids, stop_checker)
        context.append(ids)
        with self._lock:
            self.written.append(Written(read, ids, self.version))
        future: Future[Sampled] = Future()
        future.set_result(_with_top(sampled(ids, self.version, stop), options.top_logprobs or 0))
        return future

    def end(self, conversation: int) -> None:
        with self._lock:
            self._contexts.pop(conversation, None)


def sampled(ids: np.ndarray, version: int, stop: str = "stop") -> Sampled:
    logp = np.full(len(ids), -1.0, np.float32)
    return Sampled(ids, logp, logp, np.full(len(ids), version, np.int32), stop)


def _with_top(sampled: Sampled, count: int) -> Sampled:
    """With as many most probable tokens as are asked for, of which the first one was sampled."""
    if not count:
        return sampled
    top_id_Tk = np.tile(sampled.ids[:, None], (1, count))
    top_logp_Tk = np.tile(sampled.logp_plain[:, None], (1, count))
    return dataclasses.replace(sampled, top_id_Tk=top_id_Tk, top_logp_Tk=top_logp_Tk)


def _watched(ids: np.ndarray, stop_checker: StopChecker) -> np.ndarray:
    for end in (*range(WATCHED_EVERY, len(ids), WATCHED_EVERY), len(ids)):
        if (kept := stop_checker(ids[:end])) is not None:
            return ids[:kept]
    return ids


class Stage:
    """Makes episodes of one tokenizer's model."""

    def __init__(self, tokenizer: ChatTokenizer):
        self.tokenizer = tokenizer
        self.render, self.language = ChatRender(tokenizer), language_of(tokenizer)

    def episode(self, policy: ScriptedPolicy, **options: object) -> GatewayEpisode:
        """options: of `EpisodeOptions`."""
        keys = lambda number: np.array([0, number], np.uint32)  # noqa: E731
        tree = TokenTree(self.render)
        return GatewayEpisode(tree, policy, self.language, keys, EpisodeOptions(**options))

    def ids_of(self, text: str, spelled: bool = False) -> np.ndarray:
        """A reply's, end of turn included. spelled: letter by letter, as a policy may sample it,
        and as no tokenizer would write the same text."""
        if not spelled:
            return self.tokenizer.reply_ids(text)
        parts = [self.tokenizer.reply_ids(letter)[:-1] for letter in text]
        return np.concatenate([*parts, self.tokenizer.reply_ids("")])

    def saying(self, replies: Iterable[str]) -> ScriptedPolicy:
        """A policy that says these, one after the other."""
        script, lock = iter(replies), threading.Lock()

        def say(context: np.ndarray) -> np.ndarray:
            with lock:
                return self.tokenizer.reply_ids(next(script))

        return ScriptedPolicy(say)


def small_tokenizer() -> ChatTokenizer:
    """Made in a moment, with the template and the markers of Qwen3."""
    return ChatTokenizer(train_bpe([{"role": "user", "content": WORDS}] * 10, VOCABULARY))
