"""One episode's calls to the policy: from messages to ids, and from sampled ids to a reply."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import secrets
import string
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Protocol

import numpy as np

from ale_jax.errors import RolloutsFailed
from ale_jax.gateway.language import Language
from ale_jax.gateway.messages import ChatMessage
from ale_jax.gateway.requests import AUTO, NONE, ApiError, ChatRequest, Choice, SampleOptions
from ale_jax.gateway.token_tree import Branch, BranchChoice, Call, TokenTree

MAX_SEED = 2**64 - 1
ID_LETTERS, ID_LENGTH = string.ascii_letters + string.digits, 9  # as Mistral's template wants them


class Sampled(Protocol):
    """What the engine wrote. stop: "stop", "length" or "context_full"."""

    ids: np.ndarray
    logp_mu: np.ndarray
    logp_old: np.ndarray
    version: np.ndarray
    stop: str


Watch = Callable[[np.ndarray], int | None]
See = Callable[[int, str], None]


class Policy(Protocol):
    """The engine. A conversation is what it keeps in its cache between two calls."""

    def open(self) -> int: ...

    def reply(
        self,
        conversation: int,
        new_ids: np.ndarray,
        options: SampleOptions,
        key: np.ndarray,
        watch: Watch | None,
    ) -> Future[Sampled]:
        """watch: is told what has been written so far, and says after how many of these ids the
        reply ends; None if it goes on."""

    def end(self, conversation: int) -> None:
        """A reply in progress fails."""


@dataclasses.dataclass(frozen=True)
class Pending:
    """A call that the engine answers. num_new: the ids that it has to read for it, at most."""

    call: Call
    num_new: int
    conversation: int
    sampled: Future[Sampled]


class GatewayEpisode:
    """The conversations of one episode's agents. Thread-safe.

    A call that continues the newest one of a conversation in the engine's cache reads only what is
    new. Another one begins a conversation of its own, whose prompt may be in the cache already.

    A conversation between two calls keeps its place in the engine, so an episode has only so many
    of them: else each could wait for a place that another one keeps.
    """

    def __init__(
        self,
        tree: TokenTree,
        policy: Policy,
        language: Language,
        new_key: Callable[[int], np.ndarray],
        kept: int = 1,
    ):
        """new_key: the random key of the engine's conversation with this number. kept: how many
        conversations wait in the engine for their next call."""
        self.tree, self._kept = tree, kept
        self._policy, self._language, self._new_key = policy, language, new_key
        self._lock = threading.Lock()
        self._newest: dict[Call, int] = {}  # call -> the conversation in which nothing follows it
        self._keys: dict[int, np.ndarray] = {}  # of the conversations that are open
        self._numbers = itertools.count()
        self._ended = False

    def ask(self, request: ChatRequest, see: See | None = None) -> list[Pending]:
        """Lets the policy answer, `request.options.n` times.

        see: is told the content of each reply while it is written, by the engine's thread: the
        reply's number, and all of the content that is sure so far.

        Raises:
          ApiError: 410 after the end of the episode, 400 if the messages cannot be answered.
        """
        _require_possible(request)
        with _refusing():
            count = request.options.n
            calls = [self.tree.begin(request.messages, request.tools) for _ in range(count)]
        pending: list[Pending] = []
        try:
            for number, call in enumerate(calls):
                watch = self._watch(request, number, see)
                pending.append(self._begin(call, request.options, number, watch))
        except ApiError:
            for each in pending:
                self.cancel(each)
            raise
        return pending

    def _watch(self, request: ChatRequest, number: int, see: See | None) -> Watch | None:
        stops, language = request.options.stop, self._language
        if not stops and see is None:
            return None

        def watch(ids: np.ndarray) -> int | None:
            if see is not None:
                see(number, language.preview(ids, stops))
            return language.end_of(ids, stops)

        return watch

    def answer(self, pending: Pending, request: ChatRequest) -> Choice:
        """The reply to the request, once it is sampled.

        Raises:
          ApiError: 400 if the context is full, 410 if the episode has ended meanwhile, 503 if the
            engine has.
        """
        call = pending.call
        try:
            sampled = pending.sampled.result()
        except RolloutsFailed as error:
            raise self._failed() from error
        if not len(sampled.ids):
            self.cancel(pending)
            raise ApiError(400, "the conversation fills the policy's context", "messages")
        said = self._language.read(sampled.ids, request)
        named = tuple(dataclasses.replace(each, id=_new_id()) for each in said.calls)
        reply = ChatMessage("assistant", said.content, said.reasoning, named)
        self.tree.finish(call, reply, sampled)
        with self._lock:
            is_kept = not self._ended and len(self._keys) <= self._kept
            if is_kept:
                self._newest[call] = pending.conversation
        if not is_kept:
            self._leave(pending.conversation)
        finish = "length" if sampled.stop != "stop" else "tool_calls" if named else "stop"
        return Choice(reply, finish)

    def cancel(self, pending: Pending) -> None:
        """Gives up a call whose client does not get the answer, which is counted as lost."""
        self.tree.lose(pending.call)
        self._leave(pending.conversation)

    def _leave(self, conversation: int) -> None:
        with self._lock:
            self._keys.pop(conversation, None)
            kept = self._newest.items()
            self._newest = {call: each for call, each in kept if each != conversation}
        self._policy.end(conversation)

    def end(self, choice: BranchChoice) -> list[Branch]:
        """Refuses all further calls; returns what to train on."""
        with self._lock:
            self._ended = True
            conversations, self._keys = list(self._keys), {}
            self._newest.clear()
        for conversation in conversations:
            self._policy.end(conversation)
        return self.tree.branches(choice)

    def _failed(self) -> ApiError:
        if self._ended:
            return ApiError(410, "the episode has ended")
        return ApiError(503, "the policy's engine does not answer")

    def _begin(
        self, call: Call, options: SampleOptions, number: int, watch: Watch | None
    ) -> Pending:
        """number: of the reply, among those to one request."""
        with self._lock:
            if self._ended:
                raise ApiError(410, "the episode has ended")
            conversation = self._newest.pop(call.parent, None) if call.parent else None
            new_ids = call.prompt_ids
            if conversation is None:
                self._make_room()
                conversation, new_ids = self._policy.open(), call.context_ids()
                self._keys[conversation] = self._new_key(next(self._numbers))
            key = self._keys[conversation]
        if options.seed is not None:
            # The same request with the same seed is answered in the same way, in any conversation.
            key = np.random.SeedSequence([options.seed & MAX_SEED, number]).generate_state(2)
        try:
            with _refusing():
                sampled = self._policy.reply(conversation, new_ids, options, key, watch)
        except (ApiError, RolloutsFailed) as error:
            self._leave(conversation)
            raise error if isinstance(error, ApiError) else self._failed() from error
        return Pending(call, len(new_ids), conversation, sampled)

    def _make_room(self) -> None:
        """Ends the conversation that has waited longest for its next call, if there is one too
        many."""
        if self._newest and len(self._keys) >= self._kept:
            oldest = self._newest.pop(next(iter(self._newest)))
            del self._keys[oldest]
            self._policy.end(oldest)

    def count_tokens(self, request: ChatRequest) -> int:
        """Of the prompt that the request would be read as. ApiError (400) as for `ask`."""
        with _refusing():
            return len(self.tree.place(request.messages, request.tools).context_ids())


def _require_possible(request: ChatRequest) -> None:
    """ApiError (400) for what would need an engine whose replies can be constrained."""
    if request.tool_choice not in (AUTO, NONE):
        raise ApiError(400, "the policy cannot be made to call a tool", "tool_choice")
    if request.schema is not None:
        raise ApiError(400, "the policy cannot be held to a schema", "response_format")


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Tells the client what is wrong with its messages."""
    try:
        yield
    except ValueError as error:
        raise ApiError(400, str(error), "messages") from error


def _new_id() -> str:
    return "".join(secrets.choice(ID_LETTERS) for _ in range(ID_LENGTH))
