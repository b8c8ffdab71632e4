"""The engines of one process, each on devices of its own, as if they were one."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

import numpy as np

from ale_jax.config.engine import Sampling
from ale_jax.engine.engine import Engine
from ale_jax.engine.request import DEFAULT_OPTIONS, EngineStopped, RequestOptions, Sampled
from ale_jax.engine.router import Router
from ale_jax.engine.scheduler import EngineStats
from ale_jax.model.params import Params


@dataclasses.dataclass(frozen=True)
class _Place:
    """engine: its number. conversation: of the engine. group: those with the same prompt and
    adapter."""

    engine: int
    conversation: int
    group: tuple[int, bytes]


class Engines:
    """Has the methods of an engine, and may be called from any thread, too. Each conversation
    belongs to one engine from its first request on."""

    def __init__(self, engines: Sequence[Engine]):
        self._engines, self._router = engines, Router(len(engines))
        self._lock = threading.Lock()
        self._ids = itertools.count()
        # conversation -> where it is; until it has begun, the number of its adapter
        self._of: dict[int, _Place | int] = {}
        self._lent, self._lent_at = range(0), 0.0
        self._observe_lent: Callable[[int, float, float], None] = lambda *_: None

    def publish(self, weights: Sequence[Params], version: int) -> float:
        """Hands each engine its weights, and takes back those that were lent. Returns for how many
        seconds they were, or 0. weights: the copy of each engine."""
        for engine, params in zip(self._engines, weights, strict=True):
            engine.publish(params, version)
        now = time.monotonic()
        seconds = now - self._lent_at if self._lent else 0.0
        for number in self._lent:
            self._observe_lent(number, self._lent_at, now)
        with self._lock:
            for number in self._lent:
                self._engines[number].resume()
                self._router.open(number)
            self._lent = range(0)
        return seconds

    def lend(self, count: int) -> None:
        """Frees the devices of the first `count` engines, but for their weights, until `publish`.
        The others go on with their conversations, which get the same tokens. They wait meanwhile
        for what their own engine does, and nobody else does."""
        lent = range(count)
        with self._lock:
            for number in lent:
                self._router.close(number)
        for number in lent:
            self._engines[number].leave()
        with self._lock:
            self._lent = lent
            for conversation, place in list(self._of.items()):
                if isinstance(place, _Place) and place.engine in lent:
                    self._of[conversation] = self._moved(place)
        self._lent_at = time.monotonic()

    @property
    def number(self) -> int:
        """How many engines these are."""
        return len(self._engines)

    def num_open(self) -> int:
        """Returns how many conversations are open."""
        with self._lock:
            return len(self._of)

    def observe(
        self,
        sampled: Callable[[int, float, float], None],
        lent: Callable[[int, float, float], None],
    ) -> None:
        """sampled: as the observer of an engine. lent: is called when one is taken back, with when
        it was lent and when taken back. Both are given the number of the engine first."""
        self._observe_lent = lent
        for number, engine in enumerate(self._engines):
            engine.observe(partial(sampled, number))

    @property
    def vocab_size(self) -> int:
        return self._engines[0].vocab_size

    @property
    def max_sequence_length(self) -> int:
        return self._engines[0].max_sequence_length

    @property
    def version(self) -> int:
        return self._engines[-1].version  # the last to be given new weights

    @property
    def stats(self) -> EngineStats:
        """The sums over all engines."""
        each = [dataclasses.astuple(engine.stats) for engine in self._engines]
        return EngineStats(*map(sum, zip(*each, strict=True)))

    def counts(self) -> dict[str, float]:
        """Returns the stats by their names."""
        return dataclasses.asdict(self.stats)

    def open(self, adapter: int = 0) -> int:
        with self._lock:
            conversation = next(self._ids)
            self._of[conversation] = adapter
            return conversation

    def reply(
        self,
        conversation: int,
        new_ids: np.ndarray,
        max_tokens: int,
        sampling: Sampling,
        key: np.ndarray,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> Future[Sampled]:
        with self._lock:  # in which no conversation moves
            place = self._place(conversation, new_ids)
            engine = self._engines[place.engine]
            return engine.reply(place.conversation, new_ids, max_tokens, sampling, key, options)

    def end(self, conversation: int) -> None:
        with self._lock:
            place = self._of.pop(conversation, None)
            if isinstance(place, _Place):
                self._router.leave(place.engine, place.group)
                self._engines[place.engine].end(place.conversation)

    def check(self) -> None:
        for engine in self._engines:
            engine.check()

    def close(self) -> None:
        for engine in self._engines:
            engine.close()

    def _place(self, conversation: int, prompt: np.ndarray) -> _Place:
        if conversation not in self._of:  # its owner ended it meanwhile
            raise EngineStopped("the conversation was ended")
        place = self._of[conversation]
        if not isinstance(place, _Place):
            adapter, group = place, (place, prompt.tobytes())
            number = self._router.enter(group)
            place = _Place(number, self._engines[number].open(adapter), group)
            self._of[conversation] = place
        return place

    def _moved(self, place: _Place) -> _Place:
        """The place with another engine, which has taken the conversation over."""
        moved = self._engines[place.engine].hand_over(place.conversation)
        self._router.leave(place.engine, place.group)
        number = self._router.enter(place.group)
        return _Place(number, self._engines[number].take_over(moved), place.group)
