"""The inference engine: continuous batching over a paged cache, in one thread beside the learner.

Each iteration of its loop begins one dispatch. It prefills chunks of new context, first come first
served and within a budget, runs a burst of decode steps for all sequences that are being sampled,
and returns the replies that are finished. Conversations join and leave, and new weights take
effect, between two dispatches.

A conversation gets bitwise the same tokens and log-probabilities whichever others run beside it.
Its random keys depend on (conversation, position) and its shapes on its own context. It keeps its
pages until it ends, so nothing is computed a second time in another way.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
import time
from collections import deque
from concurrent.futures import Future
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ale_jax.errors import RolloutsFailed
from ale_jax.model.cache import Cache, cache_sharding, empty_cache
from ale_jax.model.device_order import dispatching
from ale_jax.model.generate import Burst, read_and_write
from ale_jax.model.params import Params
from ale_jax.model.sampler import Sampling
from ale_jax.model.shape import PolicyShape
from ale_jax.model.sharding import num_data_shards
from ale_jax.rollout.data_shard import DataShard, best_shard
from ale_jax.rollout.dispatch import ChunkBatches, Dispatch, ExpertRecord, page_table, slot_state
from ale_jax.rollout.engine_shape import EngineShape
from ale_jax.rollout.guiding import ALONE, Company, GuideTable
from ale_jax.rollout.slots import CacheSlot, Request, Sampled, Written


@dataclasses.dataclass
class EngineStats:
    """Counts since the start. busy_seconds: time that the loop's thread spent on dispatches."""

    sampled_tokens: int = 0
    prefilled_tokens: int = 0
    shared_tokens: int = 0  # prompt tokens found in pages of earlier prompts
    bursts: int = 0
    busy_seconds: float = 0.0


class EngineStopped(RolloutsFailed):
    """The engine was closed, or its thread failed (the cause is attached)."""


class Engine:
    """Samples replies for many conversations. All methods may be called from any thread."""

    def __init__(
        self,
        policy: PolicyShape,
        shape: EngineShape,
        stop_ids: tuple[int, ...],
        params: Params,
        mesh: Mesh | None = None,
        record_experts: bool = False,
    ):
        """params: the weights to sample with, as version 0 until `publish` says otherwise.
        mesh: of the weights, with the axes of model/sharding.py; None for one device.
        record_experts: whether replies say which experts each token was sent to.

        ValueError if slots or pages cannot be divided over the mesh.
        """
        self._policy, self._shape, self._stop_ids = policy, shape, stop_ids
        self._weights = (params, 0)
        self._mesh = mesh
        shards = num_data_shards(mesh) if mesh else 1
        self._record = ExpertRecord(shape, policy, shards) if record_experts else None
        self._shards = [DataShard(n, shape.shard(shards), self._record) for n in range(shards)]
        self._turns = deque(self._shards)  # as they come in turn to be read
        self._slots = [slot for shard in self._shards for slot in shard.slots]
        self._platform = next(iter(params["embed_VD"].devices())).platform
        self._cache = self._empty_cache(params["embed_VD"].dtype)
        place = self._everywhere(params["embed_VD"])
        # What the first dispatch goes on from.
        self._left = jax.device_put(slot_state((), shape.max_sequences), place)
        self._guides = GuideTable(shape.max_sequences, policy.vocab_size, place)
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
        """Uses `params` from the next dispatch on. Replies in progress continue with them."""
        self._weights = (params, version)  # one assignment: the loop sees both or neither

    @property
    def vocab_size(self) -> int:
        """Of the logits; the tokenizer may have fewer tokens."""
        return self._policy.vocab_size

    @property
    def max_sequence_length(self) -> int:
        return self._shape.max_sequence_length

    @property
    def version(self) -> int:
        return self._weights[1]

    def open(self) -> int:
        """Opens a conversation. Its first request waits for a slot and pages, and it keeps both."""
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
        company: Company = ALONE,
    ) -> Future[Sampled]:
        """Appends `new_ids` to the conversation and samples a reply of at most `max_tokens`.

        key: [2] uint32 threefry key data of the conversation. company: who is told what was written
        and may end the reply, and what guides it. The future gets `EngineStopped` if the engine
        ends first.
        """
        assert len(new_ids) > 0 and max_tokens > 0
        ids = np.asarray(new_ids, np.int32)
        request = Request(conversation, ids, max_tokens, sampling, key, company)
        with self._wake:
            if self._closed:
                raise EngineStopped("the engine is closed") from self._failure
            if conversation not in self._open:  # its owner ended it meanwhile
                raise EngineStopped("the conversation was ended")
            self._waiting.append(request)
            self._wake.notify()
        return request.future

    def end(self, conversation: int) -> None:
        """Frees the conversation's slot and pages. A reply in progress fails."""
        ended = EngineStopped("the conversation was ended")
        with self._wake:
            self._open.discard(conversation)
            for request in [r for r in self._waiting if r.conversation == conversation]:
                self._waiting.remove(request)
                request.future.set_exception(ended)
            slot = self._of.pop(conversation, None)
            if slot is not None:
                self._shard_of(slot).pages.release(slot.pages)
                slot.free(ended)
            self._wake.notify()

    def check(self) -> None:
        """Raises EngineStopped if the engine's thread has failed, so that no reply will come."""
        if self._failure is not None:
            raise EngineStopped(f"the engine failed: {self._failure!r}") from self._failure

    def close(self) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    # Below: the engine's own thread.

    def _run(self) -> None:
        try:
            with jax.set_mesh(self._mesh) if self._mesh else contextlib.nullcontext():
                begun: deque[tuple[Dispatch, Burst]] = deque()
                while (dispatch := self._next_dispatch(begun[0][0] if begun else None)) or begun:
                    start = time.monotonic()
                    if dispatch:
                        begun.append((dispatch, self._begin(dispatch)))
                    if not dispatch or len(begun) > self._shape.dispatch_ahead:
                        self._take_over(*begun.popleft())
                    self.stats.busy_seconds += time.monotonic() - start
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._give_up()

    def _next_dispatch(self, unread: Dispatch | None) -> Dispatch | None:
        """What comes after `unread`, which has begun; waits for it if there is none. None if
        nothing comes, or the engine is closed."""
        with self._wake:
            while not self._closed:
                params, version = self._weights
                batches = ChunkBatches(self._shape, len(self._shards))
                self._read_into(batches, version)
                able = [slot for slot in self._slots if self._can_write(slot, unread)]
                guided = {s.index: held for s in able if (held := s.guided()) is not None}
                writing = {s: s.request for s in able if s.request}
                if len(batches) or writing:
                    shows = {s.index: r.company.top_logprobs > 0 for s, r in writing.items()}
                    return Dispatch(
                        params,
                        version,
                        page_table(self._slots, self._shape),
                        batches.arrays(),
                        slot_state(writing, self._shape.max_sequences, unread, guided),
                        self._guides.arrays(guided, shows),
                        writing,
                    )
                if unread:
                    break
                self._wake.wait()
        return None

    def _can_write(self, slot: CacheSlot, unread: Dispatch | None) -> bool:
        if slot.request is None or slot.unread:
            return False
        if unread is None or not unread.writes_for(slot):
            return True
        # A guide must know what was written. The others may also have stopped by then, which their
        # budget on the device knows.
        return slot.request.company.guide is None and slot.budget > self._shape.decode_steps

    def _read_into(self, batches: ChunkBatches, version: int) -> None:
        """Fills the batches. Each shard takes one conversation after another, so that a prefix
        shared with an earlier one is read before the later one's first chunk."""
        self._turns.rotate()  # so that every shard gets its turn
        for shard in self._turns:
            if shard.reading:
                self._read_on(shard, batches, version)
        while slot := self._next_reader(version):
            shard = self._shard_of(slot)
            shard.reading = slot
            self._read_on(shard, batches, version)

    def _read_on(self, shard: DataShard, batches: ChunkBatches, version: int) -> None:
        slot = shard.reading
        while slot.unread and batches.has_room(shard.number, slot.next_size):
            chunk = slot.read()
            batches.add(shard.number, slot.index, chunk)
            self.stats.prefilled_tokens += len(chunk.ids)
            self._offer_pages(slot, version)
        if not slot.unread:
            shard.reading = None

    def _next_reader(self, version: int) -> CacheSlot | None:
        """Returns the slot of the request that has waited longest among those that can begin."""
        if all(shard.reading for shard in self._shards):
            return None
        newcomers_wait = False
        for request in self._waiting:
            slot = self._of.get(request.conversation)
            if slot is not None:
                if self._shard_of(slot).reading:
                    continue
                slot.begin(request, self._shape.prefill_tokens)
            elif not newcomers_wait:
                slot, newcomers_wait = self._admit(request, version)
            if slot is not None:
                self._waiting.remove(request)
                return slot
        return None

    def _admit(self, request: Request, version: int) -> tuple[CacheSlot | None, bool]:
        """Gives a conversation its slot and all its pages; else says whether it lacks them, so that
        no later one may take any, or only waits for its turn in its shard.

        Nobody who has pages waits for more, so that those who wait are sure to get theirs.
        """
        version = self._key_version(version)
        keys = request.prefix_keys(self._shape.page_tokens, version)
        keys = keys[: self._shape.pages_per_sequence]
        shard = best_shard(self._shards, keys)
        if shard is None or shard.reading:
            return None, shard is None
        slot, known = shard.take(request, keys, version)
        self._of[request.conversation] = slot
        self.stats.shared_tokens += known
        return slot, False

    def _offer_pages(self, slot: CacheSlot, version: int) -> None:
        """Offers the full pages that have keys to later conversations with the same beginning,
        provided that one version of the weights has read and written all of them."""
        if slot.prefix_version != self._key_version(version):
            slot.forget_keys()
        pages = self._shard_of(slot).pages
        full = slot.pages[: slot.length // self._shape.page_tokens]
        for page, key in zip(full, slot.prefix_keys, strict=False):
            pages.name(page, key)

    def _shard_of(self, slot: CacheSlot) -> DataShard:
        return self._shards[slot.index // len(self._shards[0].slots)]

    def _key_version(self, version: int) -> int | None:
        return None if self._shape.share_across_versions else version

    def _begin(self, dispatch: Dispatch) -> Burst:
        with dispatching(self._mesh):
            self._cache, self._left, burst = read_and_write(
                dispatch.params,
                self._cache,
                self._left,
                dispatch.page_SW,
                dispatch.chunks,
                dispatch.state,
                dispatch.guides,
                shape=self._policy,
                sizes=self._shape.prefill_tokens,
                steps=self._shape.decode_steps,
                stop_ids=self._stop_ids,
                platform=self._platform,
                record_experts=self._record is not None,
            )
        if not dispatch.chunks.num_batches:
            burst = burst.replace(read_QRTLK=None)  # empty, so it need not be copied to the host
        return burst

    def _take_over(self, dispatch: Dispatch, burst: Burst) -> None:
        burst = jax.device_get(burst)
        self.stats.bursts += bool(dispatch.writing)
        self.stats.sampled_tokens += int((burst.token_nS >= 0).sum())
        if self._record:
            self._record.take_over(dispatch, burst)
        with self._wake:
            for slot in dispatch.writing:
                # `end` may have freed it meanwhile, or an earlier burst have finished its request.
                if dispatch.writes_for(slot):
                    slot.write(_of(burst, slot.index), dispatch.version, self._stop_ids)
                    if slot.page_keys is not None:
                        self._offer_pages(slot, dispatch.version)

    def _empty_cache(self, dtype: jnp.dtype) -> Cache:
        shape = self._shape
        dtype = jnp.int8 if shape.int8_cache else dtype
        make = partial(empty_cache, self._policy, shape.pages, shape.page_tokens, dtype)
        if self._mesh is None:
            return make()
        return jax.jit(make, out_shardings=cache_sharding(self._mesh))()

    def _everywhere(self, near: jax.Array) -> jax.sharding.Sharding:
        """Where each device needs all of an array. near: where it is, without a mesh."""
        return NamedSharding(self._mesh, PartitionSpec()) if self._mesh else near.sharding

    def _give_up(self) -> None:
        with self._wake:
            self._closed = True
            cause = f"the engine failed: {self._failure!r}" if self._failure else "engine closed"
            for request in self._waiting:
                request.future.set_exception(EngineStopped(cause))
            self._waiting.clear()
            # Freed, or a conversation that is ended later would fail its request once more.
            for slot in self._of.values():
                slot.free(EngineStopped(cause))
            self._of.clear()


def _of(burst: Burst, slot: int) -> Written:
    return Written(
        burst.token_nS[:, slot],
        burst.logp_mu_nS[:, slot],
        burst.logp_old_nS[:, slot],
        burst.top_id_nSk[:, slot],
        burst.top_logp_nSk[:, slot],
    )
