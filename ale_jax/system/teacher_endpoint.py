"""A teacher behind an endpoint that tells the log-probabilities of a prompt. What it says is
hostile."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np

from ale_jax.config.run import RunConfig
from ale_jax.errors import RunFailed
from ale_jax.learn.scores import Scores
from ale_jax.records import FREE, Batch
from ale_jax.worlds.endpoint import Endpoint, EndpointError

KEY = "ALE_TEACHER_KEY"  # the environment variable of its key, which no config should hold
AT_ONCE = 16  # requests


@dataclasses.dataclass(frozen=True)
class TeacherEndpoint:
    """top: how many most probable tokens it tells. vocab_size: of the policy."""

    endpoint: Endpoint
    top: int
    vocab_size: int

    @classmethod
    def of(cls, config: RunConfig, vocab_size: int) -> TeacherEndpoint:
        """ValueError unless the config names one."""
        given = config.teacher.endpoint
        endpoint = Endpoint.read(given, "config.teacher.endpoint", os.environ.get(KEY, ""))
        return cls(endpoint, config.algo.loss.kl_top, vocab_size)

    def scores(self, batches: Sequence[Batch]) -> list[Scores]:
        """Returns what the teacher makes of the tokens.

        Raises:
          RunFailed: it does not answer, or not with log-probabilities; or a reply was held to a
            schema, of which it does not know.
        """
        with httpx.Client() as client, ThreadPoolExecutor(AT_ONCE) as pool:
            score = functools.partial(self._score, client, pool)
            try:
                return list(map(score, batches))
            except EndpointError as error:
                raise RunFailed(
                    f"the teacher does not answer ({error!s:.300}): the same command goes on once "
                    "it does"
                ) from error

    def _score(self, client: httpx.Client, pool: ThreadPoolExecutor, batch: Batch) -> Scores:
        written_BT = batch.chunk_BT >= 0
        if batch.mask_id_BT is not None and (batch.mask_id_BT[written_BT] != FREE).any():
            raise RunFailed(
                "a reply was held to a schema, and teacher.endpoint tells how probable tokens are "
                "among all: give teacher.weights, or train on worlds whose replies are free"
            )
        shape = (*written_BT.shape, self.top)
        found = Scores(
            np.zeros(written_BT.shape, np.float32),
            np.zeros(shape, np.int32) if self.top else None,
            np.zeros(shape, np.float32) if self.top else None,
        )
        places = list(_conversations(batch))
        told = pool.map(
            lambda at: self.endpoint.score(client, batch.tokens_BT[at].tolist(), self.top), places
        )
        for (row, place_T), each in zip(places, told, strict=True):
            for t, logp_of in zip(place_T, each, strict=True):
                if written_BT[row, t]:
                    self._put(found, (row, t), int(batch.tokens_BT[row, t]), logp_of)
        return found

    def _put(self, found: Scores, at: tuple[int, int], token: int, told: Any) -> None:
        logp_of = self._checked(told)
        if token not in logp_of or len(logp_of) < self.top:
            raise EndpointError(
                f"{self.endpoint.url} tells {len(logp_of)} tokens in the place of token {token}, "
                f"and not this and the {self.top} most probable"
            )
        found.logp_BT[at] = logp_of[token]
        if found.top_id_BTk is not None and found.logp_top_BTk is not None:
            best = sorted(logp_of, key=logp_of.__getitem__, reverse=True)[: self.top]
            found.top_id_BTk[at] = best
            found.logp_top_BTk[at] = [logp_of[number] for number in best]

    def _checked(self, told: Any) -> Mapping[int, float]:
        """The log-probabilities of one place, by id. Tokens that the policy does not have are left
        out, as weights are cut to its vocabulary."""
        try:
            logp_of = {int(number): float(each["logprob"]) for number, each in told.items()}
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as broken:
            raise EndpointError(f"{self.endpoint.url} tells {told!r:.200} of a token") from broken
        if any(math.isnan(logp) or logp > 1e-3 for logp in logp_of.values()):
            raise EndpointError(f"{self.endpoint.url} tells {logp_of!r:.200} of a token")
        return {n: max(logp, -1e4) for n, logp in logp_of.items() if 0 <= n < self.vocab_size}


def _conversations(batch: Batch) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the row and the places of each conversation in which the policy wrote, up to its last
    token."""
    for row, (segment_T, chunk_T) in enumerate(zip(batch.segment_BT, batch.chunk_BT, strict=True)):
        for segment in np.unique(segment_T[chunk_T >= 0]):
            (place_T,) = np.nonzero(segment_T == segment)
            last = np.nonzero(chunk_T[place_T] >= 0)[0][-1]
            yield row, place_T[: last + 1]
