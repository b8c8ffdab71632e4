"""The inference engine: continuous batching over cache slots, in one thread, next to the learner.

Each turn of its loop prefills one chunk for the conversations that have new context, runs one
burst of decode steps for all that are writing, and hands out what is finished. Conversations join
and leave between any two bursts; new weights are taken between any two dispatches.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

import jax
import numpy as np

from ale_jax.model.cache import empty_cache
from ale_jax.model.params import Params
from ale_jax.model.sampler import Sampling, SlotState, decode, prefill
from ale_jax.model.shape import PolicyShape
from ale_jax.rollout.slots import CacheSlot, Request, Sampled


@dataclasses.dataclass(frozen=True)
class EngineShape:
    """slots: conversations at once. slot_tokens: longest conversation. decode_steps: per dispatch.
    prefill_tokens: a chunk of context is padded to the smallest of these that holds it; the last
    one is the longest chunk."""

    slots: int
    slot_tokens: int
    decode_steps: int
    prefill_tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.prefill_tokens or sorted(self.prefill_tokens) != list(self.prefill_tokens):
            raise ValueError(
                f"engine.prefill_tokens {self.prefill_tokens} must be numbers in ascending order"
            )
        if min(self.slots, self.slot_tokens, self.decode_steps, self.prefill_tokens[0]) < 1:
            raise ValueError(f"engine sizes must be at least 1: {self}")


@dataclasses.dataclass
class EngineStats:
    """Counted since the start; seconds are of the loop's thread."""

    sampled_tokens: int = 0
    prefilled_tokens: int = 0
    bursts: int = 0
    busy_seconds: float = 0.0


class EngineStopped(RuntimeError):
    """The engine was closed, or its thread failed (the cause is attached)."""


class Engine:
    """Samples replies for many conversations. All methods may be called from any thread."""

    def __init__(
        self,
        policy: PolicyShape,
        shape: EngineShape,
        stop_ids: tuple[int, ...],
        params: Params,
        version: int = 0,
    ):
        self._policy, self._shape, self._stop_ids = policy, shape, stop_ids
        self._weights = (params, version)
        self._cache = empty_cache(policy, shape.slots, shape.slot_tokens)
        self._slots = [CacheSlot(i, shape.slot_tokens) for i in range(shape.slots)]
        self._of: dict[int, CacheSlot] = {}  # conversation -> its slot
        self._waiting: deque[Request] = deque()
        self._ids = itertools.count()
        self._open: set[int] = set()
        self._wake = threading.Condition()
        self._closed = False
        self._failure: BaseException | None = None
        self.stats = EngineStats()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def publish(self, params: Params, version: int) -> None:
        """Samples with `params` from the next dispatch on; nothing in flight is interrupted."""
        self._weights = (params, version)  # one assignment: the loop sees both or neither

    @property
    def version(self) -> int:
        return self._weights[1]

    def open(self) -> int:
        """A new conversation. It takes a cache slot at its first request, until it is closed."""
        with self._wake:
            conversation = next(self._ids)
            self._open.add(conversation)
            return conversation

    def reply(
        self,
        conversation: int,
        new_ids: np.ndarray,
        max_tokens: int,
        sampling: Sampling,
        key: np.ndarray,
    ) -> Future[Sampled]:
        """Appends `new_ids` to the conversation and samples a reply of at most `max_tokens`.

        key: [2] uint32 threefry key data of the conversation. The future gets `EngineStopped` if
        the engine ends first.
        """
        assert len(new_ids) > 0 and max_tokens > 0
        request = Request(conversation, np.asarray(new_ids, np.int32), max_tokens, sampling, key)
        with self._wake:
            if self._closed:
                raise EngineStopped("the engine is closed") from self._failure
            if conversation not in self._open:  # its owner gave it up meanwhile
                raise EngineStopped("the conversation was ended")
            self._waiting.append(request)
            self._wake.notify()
        return request.future

    def end(self, conversation: int) -> None:
        """Frees the conversation's slot. A reply under way is given up."""
        ended = EngineStopped("the conversation was ended")
        with self._wake:
            self._open.discard(conversation)
            for request in [r for r in self._waiting if r.conversation == conversation]:
                self._waiting.remove(request)
                request.future.set_exception(ended)
            slot = self._of.pop(conversation, None)
            if slot is not None:
                slot.free(ended)
            self._wake.notify()

    def close(self) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    # Below: the engine's own thread.

    def _run(self) -> None:
        try:
            while self._admit():
                start = time.monotonic()
                self._prefill_chunks()
                self._decode_burst()
                self.stats.busy_seconds += time.monotonic() - start
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._give_up()

    def _admit(self) -> bool:
        """Waits for work and gives waiting requests their slots. False when closed."""
        with self._wake:
            while True:
                held: deque[Request] = deque()
                while self._waiting:
                    request = self._waiting.popleft()
                    slot = self._of.get(request.conversation) or self._take_slot(request)
                    if slot is None:
                        held.append(request)
                    else:
                        slot.begin(request)
                self._waiting = held
                if self._closed:
                    return False
                if any(s.request for s in self._slots):
                    return True
                self._wake.wait()

    def _take_slot(self, request: Request) -> CacheSlot | None:
        slot = next((s for s in self._slots if s.conversation is None), None)
        if slot is not None:
            slot.conversation = request.conversation
            self._of[request.conversation] = slot
        return slot

    def _prefill_chunks(self) -> None:
        """The next chunk of every conversation that has context to read, one dispatch for each.

        Not batched: the shape of a dispatch, and with it the last bits of its numbers, then depends
        on the conversation alone and not on who else happens to be waiting.
        """
        for slot in self._slots:
            with self._wake:  # `end` may free a slot meanwhile
                if not slot.unread:
                    continue
                chunk = slot.read(self._shape.prefill_tokens[-1])
                start = slot.length - len(chunk)
            size = next(n for n in self._shape.prefill_tokens if n >= len(chunk))
            tokens_BT = np.zeros((1, size), np.int32)
            tokens_BT[0, : len(chunk)] = chunk
            slot_B, start_B = np.array([slot.index]), np.array([start])
            params, _ = self._weights
            self._cache = prefill(params, self._cache, slot_B, tokens_BT, start_B, self._policy)
            self.stats.prefilled_tokens += len(chunk)

    def _decode_burst(self) -> None:
        """`decode_steps` steps for every conversation that is writing."""
        with self._wake:
            writing = [s for s in self._slots if s.request and s.unread == 0]
            if not writing:
                return
            state = self._state(writing)
            cut = any(s.request.sampling.cuts for s in writing)
        params, version = self._weights
        self._cache, _, burst = decode(
            params,
            self._cache,
            state,
            self._policy,
            steps=self._shape.decode_steps,
            stop_ids=self._stop_ids,
            cut=cut,
        )
        token_nS, mu_nS, old_nS = jax.device_get(
            (burst.token_nS, burst.logp_mu_nS, burst.logp_old_nS)
        )
        self.stats.bursts += 1
        self.stats.sampled_tokens += int((token_nS >= 0).sum())
        with self._wake:
            for slot in writing:
                if slot.request is not None:
                    i = slot.index
                    slot.write(token_nS[:, i], mu_nS[:, i], old_nS[:, i], version, self._stop_ids)

    def _state(self, writing: Sequence[CacheSlot]) -> SlotState:
        S = self._shape.slots
        state = SlotState(
            token_S=np.zeros((S,), np.int32),
            position_S=np.zeros((S,), np.int32),
            budget_S=np.zeros((S,), np.int32),
            key_S2=np.zeros((S, 2), np.uint32),
            temperature_S=np.ones((S,), np.float32),
            top_k_S=np.zeros((S,), np.int32),
            top_p_S=np.ones((S,), np.float32),
        )
        for slot in writing:
            i, request = slot.index, slot.request
            state.token_S[i] = slot.tail[0]
            state.position_S[i] = slot.length
            state.budget_S[i] = slot.budget
            state.key_S2[i] = request.key
            state.temperature_S[i] = request.sampling.temperature
            state.top_k_S[i] = request.sampling.top_k
            state.top_p_S[i] = request.sampling.top_p
        return state

    def _give_up(self) -> None:
        with self._wake:
            self._closed = True
            cause = f"the engine failed: {self._failure!r}" if self._failure else "engine closed"
            requests = [*self._waiting, *(s.request for s in self._slots if s.request)]
            for request in requests:
                request.future.set_exception(EngineStopped(cause))
            self._waiting.clear()
