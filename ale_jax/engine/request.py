"""What the engine is asked for and what it answers. Loads no jax, so that the gateway can."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

import numpy as np

from ale_jax.config.engine import Sampling
from ale_jax.engine.pages import Weights, prefix_keys
from ale_jax.errors import RolloutsFailed
from ale_jax.records import FREE

# Given all ids of a reply so far: after how many of them it ends; None if it goes on.
StopChecker = Callable[[np.ndarray], int | None]


class EngineStopped(RolloutsFailed):
    """The engine was closed, or its thread failed (the cause is attached)."""


@dataclasses.dataclass(frozen=True)
class TokenConstraint:
    """What holds for one token of a reply.

    allowed_w: bit fields as in `model.guides.Guides`; None if every token is allowed. bias_V:
    float32, what is added to the logits; None if nothing is. mask_id: as in `Turn`, of who keeps
    masks for the learner. is_speculative: whether the constraint may turn out to be wrong.
    """

    allowed_w: np.ndarray | None = None
    bias_V: np.ndarray | None = None
    mask_id: int = FREE
    is_speculative: bool = False


class Guide(Protocol):
    """The logits processor of one reply, such as a grammar. It is called by the engine's thread, so
    it has to be quick."""

    def next(self, ids: np.ndarray, most: int) -> Sequence[TokenConstraint]:
        """Returns the constraints of the next tokens, at most of `most`.

        That of the first token is certain, and so are those behind tokens that are the only ones
        allowed. Those that follow may be speculative: a token that was sampled under a wrong
        constraint is not accepted, and sampled again. Whether a constraint is right depends on the
        tokens before it, and not on the one that is sampled, so the accepted tokens are those that
        would be sampled one by one.

        ids: all of the reply so far. What it raises, the reply fails with.
        """


class MaskNumbers(Protocol):
    """Keeps sampling masks for the learner. It is called by the engine's thread."""

    def number(self, allowed_w: np.ndarray) -> int:
        """Returns the number of a mask, as in `Turn`. What it raises, the reply fails with."""


@dataclasses.dataclass(frozen=True)
class RequestOptions:
    """How a reply is sampled and served. stop_checker: called after each dispatch that decoded
    tokens of the reply, by the engine's thread. top_logprobs: number of most probable tokens whose
    log-probabilities are wanted. priority: requests of a higher one are served first, and preempt
    others. left: keeps what each token could be drawn from, after the guide and after top_k, top_p
    and min_p, of an engine that records it; None: what the guide says is kept. context: tokens that
    the conversation may have, where the engine would allow more."""

    stop_checker: StopChecker | None = None
    guide: Guide | None = None
    top_logprobs: int = 0
    priority: int = 0
    left: MaskNumbers | None = None
    context: int | None = None


DEFAULT_OPTIONS = RequestOptions()


@dataclasses.dataclass(frozen=True)
class Sampled:
    """A reply: its ids, and of each id the log-probability as sampled (mu), the log-probability
    under the plain softmax, which APIs tell, and the version of the weights.

    stop: "stop": a stop token was sampled (the last id); "length": max_tokens were sampled;
    "context_full": the conversation has its maximal length (`ids` may be empty).

    top_id_Tk, top_logp_Tk: if the request wants them, the k most probable tokens in place of each
    id, and their log-probabilities under the plain softmax.

    expert_TLK: if experts are recorded, those of the T tokens that entered the cache since the
    conversation's last reply, int16. The last id of `ids` enters it with the next reply.

    mask_id: as in `Turn`; None if the reply was free.
    """

    ids: np.ndarray
    logp_mu: np.ndarray
    logp_plain: np.ndarray
    version: np.ndarray
    stop: str
    expert_TLK: np.ndarray | None = None
    top_id_Tk: np.ndarray | None = None
    top_logp_Tk: np.ndarray | None = None
    mask_id: np.ndarray | None = None


@dataclasses.dataclass(eq=False)
class Request:
    """A request for one reply of a conversation. number: counts requests in the order in which the
    engine was given them. adapter: the conversation's."""

    conversation: int
    new_ids: np.ndarray
    max_tokens: int
    sampling: Sampling
    key: np.ndarray
    options: RequestOptions = DEFAULT_OPTIONS
    number: int = 0
    adapter: int = 0
    future: Future = dataclasses.field(default_factory=Future)
    _keys: tuple[Weights, list[bytes]] | None = None

    @property
    def rank(self) -> tuple[int, int]:
        """The place of the request: requests are served in ascending order."""
        return -self.options.priority, self.number

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def prefix_keys(self, page_tokens: int, weights: Weights) -> list[bytes]:
        """Returns the keys of the full pages to be prefilled. Cached, because a waiting request is
        checked often."""
        if self._keys is None or self._keys[0] != weights:
            self._keys = weights, prefix_keys(self.new_ids[:-1], page_tokens, weights)
        return self._keys[1]


class EngineCounts(Protocol):
    """The part of `scheduler.EngineStats` that others read."""

    sampled_tokens: int


class InferenceEngine(Protocol):
    """What the gateway needs of an `engine.Engine`, or of `engines.Engines`."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_sequence_length(self) -> int: ...

    @property
    def version(self) -> int: ...

    @property
    def stats(self) -> EngineCounts: ...

    def open(self, adapter: int = 0) -> int: ...

    def reply(
        self,
        conversation: int,
        new_ids: np.ndarray,
        max_tokens: int,
        sampling: Sampling,
        key: np.ndarray,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> Future[Sampled]: ...

    def end(self, conversation: int) -> None: ...
