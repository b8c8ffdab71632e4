"""The data sets of a warm start: what is learned of their conversations, and what is not, and
why."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator

from ale_jax.config.learn import Shape
from ale_jax.config.recorded import RecordedData
from ale_jax.config.worlds import WarmStartConfig
from ale_jax.data.packing import Sample
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.recorded.conversation import Conversation, ItemKey
from ale_jax.recorded.files import files_of, records
from ale_jax.recorded.formats import conversation_of
from ale_jax.recorded.samples import Dropped, sample_of

POOR, EVALUATED = "below min_reward", "played in this run's evaluations"


@dataclasses.dataclass(frozen=True)
class RecordedSet:
    """learned, held_out: samples, of which every one of `conversations` is in one list, or among
    `dropped`, by its reason. replies, masked: of those that are not dropped; masked ones are not
    learned. cut: conversations that were cut behind a reply.
    """

    data: RecordedData
    learned: tuple[Sample, ...]
    held_out: tuple[Sample, ...]
    conversations: int
    dropped: Counter[str]
    replies: int
    masked: int
    cut: int

    @property
    def account(self) -> str:
        """What became of its conversations, for people."""
        dropped = sum(self.dropped.values())
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.dropped.most_common(5))
        return (
            f"{self.data.name}: {self.conversations} conversations: {len(self.learned)} learned, "
            f"{len(self.held_out)} held out, {dropped} dropped{f' ({reasons})' if dropped else ''}"
            f"; {self.replies} replies, {self.masked} of them masked; {self.cut} conversations cut"
        )


@dataclasses.dataclass(frozen=True)
class Terms:
    """How conversations become samples. folder: of relative files. is_evaluated: whether a run
    plays an item in its evaluations, or may."""

    warm: WarmStartConfig
    shape: Shape
    folder: str = ""
    is_evaluated: Callable[[ItemKey], bool] = lambda item: False


def conversations(data: RecordedData, folder: str) -> Iterator[tuple[str, Conversation]]:
    """Yields the conversations of a data set, each with its place. ValueError, with file, line and
    field, for one that cannot be read."""
    for file in files_of(data, folder):
        for place, record in records(file):
            try:
                yield place, conversation_of(record)
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from None


class Reader:
    """Reads one data set. A conversation is dropped for the first reason that there is."""

    def __init__(self, data: RecordedData, terms: Terms, tokenizer: ChatTokenizer):
        self._data, self._terms, self._tokenizer = data, terms, tokenizer
        self._dropped: Counter[str] = Counter()
        self._replies = self._masked = self._cut = 0

    def read(self, on_progress: Callable[[int], None]) -> RecordedSet:
        """on_progress: is told how many conversations were read.

        ValueError for a file that is damaged, or if nothing is left to learn.
        """
        learned: list[Sample] = []
        held_out: list[Sample] = []
        number = 0
        told = conversations(self._data, self._terms.folder)
        for number, (place, each) in enumerate(told, 1):
            if self._data.min_reward and each.reward is None and each.item is None:
                raise ValueError(f"{place}: reward: it is missing, and data.min_reward is above 0")
            try:
                (held_out if self._is_held_out(each) else learned).append(self._sample(each))
            except Dropped as reason:
                self._dropped[str(reason)] += 1
            on_progress(number)
        counts = self._dropped, self._replies, self._masked, self._cut
        found = RecordedSet(self._data, tuple(learned), tuple(held_out), number, *counts)
        if not learned:
            raise ValueError(f"warm_start.data {found.account}: there is nothing to learn")
        return found

    def _sample(self, conversation: Conversation) -> Sample:
        data, warm = self._data, self._terms.warm
        if data.min_reward and (conversation.reward or 0.0) < data.min_reward:
            raise Dropped(POOR)
        if conversation.item and self._terms.is_evaluated(conversation.item):
            raise Dropped(EVALUATED)
        mask = conversation.mask(warm.mask_errors, warm.mask_repeats)
        sample = sample_of(conversation, mask, self._tokenizer, self._terms.shape, data.too_long)
        self._replies += len(mask)
        self._masked += int((~mask).sum())
        self._cut += sample.num_chunks < int(mask.sum())
        return sample

    def _is_held_out(self, conversation: Conversation) -> bool:
        share = self._terms.warm.held_out_share
        return int.from_bytes(conversation.beginning[:8]) < share * 2**64
