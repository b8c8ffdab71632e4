"""The inference engine: continuous batching over a paged cache, in one thread beside the learner.

Each iteration of its loop begins one dispatch. It prefills chunks of new context, first come first
served and within a budget, runs decode steps for all sequences that are prefilled, and returns the
replies that are finished. Conversations join and leave, and new weights take effect, between two
dispatches.

A conversation gets bitwise the same tokens and log-probabilities whichever others run beside it, if
`engine.speculative_tokens` is 0.
Its random keys depend on (conversation, position) and its shapes on its own context. If it is
preempted (engine/scheduler.py), its pages are swapped out to the host, so that nothing is computed
a second time in another way.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.engine import EngineShape, Sampling
from ale_jax.engine.dispatch import (
    Dispatch,
    ExpertRecord,
    GuideTable,
    adapters_of,
    page_table,
    said_by,
    slot_state,
)
from ale_jax.engine.page_swaps import Copied
from ale_jax.engine.request import DEFAULT_OPTIONS, EngineStopped, Request, RequestOptions, Sampled
from ale_jax.engine.scheduler import EngineStats, Moved, Scheduler
from ale_jax.engine.sequence import DecodedTokens
from ale_jax.model.decode import DecodeOutput
from ale_jax.model.generate import prefill_and_decode
from ale_jax.model.memory import Cache, cache_shardings, empty_cache
from ale_jax.model.params import Params
from ale_jax.model.served_adapters import OF_COLUMN, OF_SLOT
from ale_jax.model.sharding import dispatching, num_data_shards

Observer = Callable[[float, float], None]
LOOK_S = 1.0  # whether the engine has failed meanwhile


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
        record_left: bool = False,
    ):
        """params: the weights to sample with, as version 0 until `publish` says otherwise.
        mesh: of the weights, with the axes of model/sharding.py; None for one device.
        record_experts: whether replies say which experts each token was sent to.
        record_left: whether requests may keep what top_k, top_p and min_p left (`RequestOptions`).

        ValueError if slots or pages cannot be divided over the mesh.
        """
        assert not (policy.is_recurrent and shape.speculative_tokens), "refused by `policy_shape`"
        self._policy, self._shape, self._stop_ids = policy, shape, stop_ids
        self._weights = (params, 0)
        self._mesh = mesh
        shards = self._shards = num_data_shards(mesh) if mesh else 1
        self._record_left = record_left
        self._record = ExpertRecord(shape, policy, shards) if record_experts else None
        self.stats = EngineStats()
        self._platform = next(iter(params["embed_VD"].devices())).platform
        self._dtype = params["embed_VD"].dtype
        self._begin_empty()
        place = self._everywhere(params["embed_VD"])
        # Of the newest dispatch; at first, of none.
        self._slot_state = jax.device_put(slot_state((), shape.max_sequences), place)
        self._guides = GuideTable(shape.max_sequences, policy.vocab_size, shape.decode_steps, place)
        self._ids, self._numbers = itertools.count(), itertools.count()
        self._open: dict[int, int] = {}  # conversation -> its adapter
        self._wake = threading.Condition()
        self._closed = False
        self._leaving = False  # nobody goes on here
        self._has_left = threading.Event()
        self._observer: Observer | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def publish(self, params: Params, version: int) -> None:
        """Uses `params` from the next dispatch on. Replies in progress continue with them."""
        self._weights = (params, version)  # one assignment: the loop sees both or neither

    def observe(self, observer: Observer) -> None:
        """Calls `observer` with start and end of each time of work, in seconds of `time.monotonic`,
        from the engine's thread."""
        self._observer = observer

    @property
    def vocab_size(self) -> int:
        """The number of logits; the tokenizer may have fewer tokens."""
        return self._policy.vocab_size

    @property
    def max_sequence_length(self) -> int:
        return self._shape.max_sequence_length

    @property
    def version(self) -> int:
        return self._weights[1]

    def open(self, adapter: int = 0) -> int:
        """Opens a conversation. Each of its requests waits for a slot, if it has been preempted.
        adapter: its number, if the weights have several (`model.served_adapters`)."""
        with self._wake:
            conversation = next(self._ids)
            self._open[conversation] = adapter
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
        """Appends `new_ids` to the conversation and samples a reply of at most `max_tokens`.

        key: [2] uint32 threefry key data of the conversation. The future gets
        `EngineStopped` if the engine ends first.
        """
        assert len(new_ids) > 0 and max_tokens > 0
        assert options.left is None or self._record_left, "the engine does not record it"
        ids = np.asarray(new_ids, np.int32)
        with self._wake:
            if self._closed:
                raise EngineStopped("the engine is closed") from self._failure
            if conversation not in self._open:  # its owner ended it meanwhile
                raise EngineStopped("the conversation was ended")
            told = max_tokens, sampling, key, options, next(self._numbers)
            request = Request(conversation, ids, *told, self._open[conversation])
            self._scheduler.add(request)
            self._wake.notify()
        return request.future

    def end(self, conversation: int) -> None:
        """Frees what the conversation has. A reply in progress fails."""
        with self._wake:
            self._open.pop(conversation, None)
            self._scheduler.end(conversation, EngineStopped("the conversation was ended"))
            self._wake.notify()

    def leave(self) -> None:
        """Stops, and waits until what its conversations have is on the host. Then its devices are
        free but for the weights, until `resume`. Requests wait meanwhile."""
        with self._wake:
            self._leaving = True
            self._wake.notify()
        while not self._has_left.wait(LOOK_S):
            if self._closed:
                raise EngineStopped("the engine is closed") from self._failure
        self._cache: Cache = []

    def resume(self) -> None:
        """Goes on after `leave`, without the conversations that others took over."""
        with self._wake:
            assert not self._open, "others have taken over all"
            self._begin_empty()
            self._leaving = False
            self._has_left.clear()

    def hand_over(self, conversation: int) -> Moved:
        """Gives a conversation away, after `leave`. Nothing of it is lost."""
        with self._wake:
            return self._scheduler.hand_over(conversation, self._open.pop(conversation))

    def take_over(self, moved: Moved) -> int:
        """Goes on with a conversation of another engine of the same sizes, which gets the tokens
        that it would have got there. Returns its number here."""
        with self._wake:
            conversation = next(self._ids)
            if self._closed:
                for request in moved.requests:
                    request.fail(EngineStopped("the engine is closed"))
                return conversation
            self._open[conversation] = moved.adapter
            self._scheduler.take_over(moved, conversation, self._numbers)
            self._wake.notify()
        return conversation

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
                begun: deque[tuple[Dispatch, DecodeOutput, Copied]] = deque()
                while (dispatch := self._next_dispatch(begun[0][0] if begun else None)) or begun:
                    start = time.monotonic()
                    if dispatch:
                        begun.append((dispatch, *self._begin(dispatch)))
                    if not dispatch or len(begun) > self._shape.dispatch_ahead:
                        self._finish(*begun.popleft())
                    end = time.monotonic()
                    self.stats.busy_seconds += end - start
                    if self._observer:
                        self._observer(start, end)
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._give_up()

    def _next_dispatch(self, in_flight: Dispatch | None) -> Dispatch | None:
        """The dispatch after `in_flight`; waits for one if none is in flight. None if there is
        none, or the engine is closed."""
        with self._wake:
            while not self._closed:
                params, version = self._weights
                plan_next = self._scheduler.plan
                if self._leaving:
                    plan_next = self._scheduler.plan_leaving
                plan = plan_next(version, in_flight)
                steps = self._shape.decode_steps
                guided = {s.slot: found for s in plan.decoding if (found := s.guided(steps))}
                decoding = {s: s.request for s in plan.decoding if s.request}
                if len(plan.prefill) or len(plan.swaps) or decoding:
                    wants_top = [s.slot for s, r in decoding.items() if r.options.top_logprobs]
                    return Dispatch(
                        self._for_slots(params),
                        version,
                        page_table(self._scheduler.running, self._shape),
                        plan.prefill.arrays(),
                        slot_state(decoding, self._shape.max_sequences, in_flight, guided),
                        self._guides.arrays(guided, wants_top),
                        decoding,
                        plan.swaps,
                        said_by(decoding, self._shape),
                    )
                if in_flight:
                    break
                # Else requests may have ended, by a full context or an error of a guide, and made
                # room for others.
                if not plan.fixed and len(decoding) == len(plan.decoding):
                    if self._leaving and self._scheduler.has_left:
                        self._has_left.set()
                    self._wake.wait()
        return None

    def _for_slots(self, params: Params) -> Params:
        """The weights, and which of several adapters each slot uses."""
        if OF_COLUMN not in params:
            return params
        running, slots = self._scheduler.running, self._shape.max_sequences
        return params | {OF_SLOT: adapters_of(running, slots)}

    def _begin(self, dispatch: Dispatch) -> tuple[DecodeOutput, Copied]:
        """The output, and what was copied out of the cache to be swapped out."""
        with dispatching(self._mesh):
            self._cache, copied = dispatch.swaps.begin(self._cache, self._mesh)
            self._cache, self._slot_state, output = prefill_and_decode(
                dispatch.params,
                self._cache,
                self._slot_state,
                dispatch.page_SW,
                dispatch.prefill,
                dispatch.state,
                dispatch.guides,
                dispatch.said,
                shape=self._policy,
                sizes=self._shape.prefill_tokens,
                steps=self._shape.decode_steps,
                drafted=self._shape.speculative_tokens,
                stop_ids=self._stop_ids,
                platform=self._platform,
                record_experts=self._record is not None,
                record_left=self._record_left,
            )
        if not dispatch.prefill.num_batches:  # it is empty, and need not be copied to the host
            output = output.replace(prefill_expert_QRTLK=None)
        return output, copied

    def _finish(self, dispatch: Dispatch, output: DecodeOutput, copied: Copied) -> None:
        output, copied = jax.device_get((output, copied))
        dispatch.swaps.finish(copied, self._record)
        self.stats.decode_dispatches += bool(dispatch.decoding)
        assert output.count_3 is not None
        self.stats.count_passes(*output.count_3.tolist())
        if self._record:
            self._record.record(dispatch, output)
        with self._wake:
            for sequence in dispatch.decoding:
                # `end` may have freed it meanwhile, or an earlier dispatch finished its request.
                if dispatch.decodes(sequence):
                    decoded = sequence.accepted(_in_slot(output, sequence.slot))
                    if output.acceptance_S is not None and sequence.draft_record:
                        sequence.draft_record.acceptance = float(output.acceptance_S[sequence.slot])
                    self.stats.sampled_tokens += len(decoded.token_n)  # before the reply is given
                    sequence.append(decoded, dispatch.version, self._stop_ids)
                    if sequence.page_keys is not None:
                        self._scheduler.share_pages(sequence, dispatch.version)

    def _begin_empty(self) -> None:
        """With no conversation, and an empty cache."""
        recurrent = self._policy.is_recurrent
        self._scheduler = Scheduler(self._shape, self._shards, self.stats, self._record, recurrent)
        self._cache = self._empty_cache()

    @cached_property
    def _empty_cache(self) -> Callable[[], Cache]:
        shape = self._shape
        dtype = jnp.int8 if shape.int8_cache else self._dtype
        sizes = shape.pages, shape.page_tokens, dtype, shape.max_sequences, self._platform
        make = partial(empty_cache, self._policy, *sizes)
        if self._mesh is None:
            return make
        return jax.jit(make, out_shardings=cache_shardings(self._policy, self._mesh))

    def _everywhere(self, near: jax.Array) -> jax.sharding.Sharding:
        """Where each device needs all of an array. near: where it is, without a mesh."""
        return NamedSharding(self._mesh, PartitionSpec()) if self._mesh else near.sharding

    def _give_up(self) -> None:
        with self._wake:
            self._closed = True
            cause = f"the engine failed: {self._failure!r}" if self._failure else "engine closed"
            self._scheduler.fail_all(EngineStopped(cause))


def _in_slot(output: DecodeOutput, slot: int) -> DecodedTokens:
    """Returns what was decoded in one slot. output: on the host."""
    assert output.top_id_nSk is not None and output.top_logp_nSk is not None
    no_words = np.zeros((*output.token_nS.shape, 0), np.int32)
    parts = (
        *(output.token_nS, output.logp_mu_nS, output.logp_plain_nS),
        *(output.top_id_nSk, output.top_logp_nSk),
        no_words if output.left_nSw is None else output.left_nSw,
    )
    is_token_n = np.asarray(output.token_nS)[:, slot] >= 0  # a wrong draft leaves a gap
    return DecodedTokens(*(np.asarray(part)[is_token_n, slot] for part in parts))
