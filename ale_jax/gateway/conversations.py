"""The conversations of an episode that the engine keeps in its cache between two calls."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

import numpy as np

from ale_jax.gateway.custody.calls import Call, SampledTokens
from ale_jax.gateway.requests import SampleOptions


class Sampled(SampledTokens, Protocol):
    """What the engine wrote, and how it ended. stop: "stop", "length" or "context_full".
    logp_plain: under the plain softmax. top_id_Tk, top_logp_Tk: the most probable tokens, as many
    as were asked for; None if none were."""

    @property
    def logp_plain(self) -> np.ndarray: ...

    @property
    def stop(self) -> str: ...

    @property
    def top_id_Tk(self) -> np.ndarray | None: ...

    @property
    def top_logp_Tk(self) -> np.ndarray | None: ...


StopChecker = Callable[[np.ndarray], int | None]


class Policy(Protocol):
    """The engine. A conversation is what it keeps in its cache between two calls."""

    def open(self) -> int: ...

    def reply(
        self,
        conversation: int,
        new_ids: np.ndarray,
        options: SampleOptions,
        key: np.ndarray,
        stop_checker: StopChecker | None,
    ) -> Future[Sampled]:
        """Asks for a reply to a conversation with new ids. stop_checker: given the ids that have
        been sampled so far, returns after how many of them the reply ends; None if it goes on."""

    def end(self, conversation: int) -> None:
        """Ends a conversation; a reply in progress fails."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a call is answered. new_ids: what the engine has to prefill for it, at most. key: of
    the conversation's random numbers."""

    conversation: int
    new_ids: np.ndarray
    key: np.ndarray


class Conversations:
    """Thread-safe.

    A call that continues the newest one of a conversation reads only what is new. Another one
    begins a conversation of its own, whose prompt may be in the engine's cache already.

    A conversation between two calls keeps what it has in the engine, in the cache or on the host,
    so an episode has only so many of them.
    """

    def __init__(self, policy: Policy, new_key: Callable[[int], np.ndarray], kept: int):
        """new_key: the random key of the conversation with this number. kept: how many of them wait
        in the engine for their next call."""
        self._policy, self._new_key, self._kept = policy, new_key, kept
        self._lock = threading.Lock()
        self._newest: dict[Call, int] = {}  # call -> the conversation in which nothing follows it
        self._keys: dict[int, np.ndarray] = {}  # of those that are open
        self._users: dict[int, Call] = {}  # of those that are open, the last call
        self._numbers = itertools.count()
        self._ended = False

    def place(self, call: Call) -> Place | None:
        """Returns the conversation for a call; None after the end."""
        with self._lock:
            if self._ended:
                return None
            conversation = self._newest.pop(call.parent, None) if call.parent else None
            new_ids = call.prompt_ids
            if conversation is None:
                self._make_room()
                conversation, new_ids = self._policy.open(), call.context_ids()
                self._keys[conversation] = self._new_key(next(self._numbers))
            self._users[conversation] = call
            return Place(conversation, new_ids, self._keys[conversation])

    def answered(self, call: Call, conversation: int) -> None:
        """Keeps the conversation for the call that continues this one, if there is room."""
        with self._lock:
            is_open = self._users.get(conversation) is call
            is_kept = is_open and len(self._keys) <= self._kept
            if is_kept:
                self._newest[call] = conversation
        if not is_kept:
            self.leave(call, conversation)

    def leave(self, call: Call, conversation: int) -> None:
        """Ends the conversation, unless another call goes on with it."""
        with self._lock:
            if self._users.get(conversation) is not call:
                return
            self._forget(conversation)
        self._policy.end(conversation)

    def end(self) -> None:
        """Ends all of them. There are no more."""
        with self._lock:
            self._ended = True
            open_ones = list(self._keys)
            for conversation in open_ones:
                self._forget(conversation)
        for conversation in open_ones:
            self._policy.end(conversation)

    def _make_room(self) -> None:
        """Ends the conversation that has waited longest for its next call, if there is one too
        many."""
        if self._newest and len(self._keys) >= self._kept:
            oldest = next(iter(self._newest.values()))
            self._forget(oldest)
            self._policy.end(oldest)

    def _forget(self, conversation: int) -> None:
        self._newest.pop(self._users.pop(conversation), None)
        del self._keys[conversation]
