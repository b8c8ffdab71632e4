"""The data sets of a warm start: what is learned of their records, and what is not, and why."""

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
from ale_jax.recorded.formats import read_record
from ale_jax.recorded.plain import Text, text_samples
from ale_jax.recorded.samples import Dropped, sample_of

POOR, EVALUATED = "below min_reward", "played in this run's evaluations"


@dataclasses.dataclass(frozen=True)
class RecordedSet:
    """learned, held_out: samples, one of each conversation, and some of each plain text. used: the
    records that are learned and held out; with `dropped`, by their reasons, these are all. replies,
    masked: of conversations that are not dropped; masked ones are not learned. cut: conversations
    that were cut behind a reply.
    """

    data: RecordedData
    learned: tuple[Sample, ...]
    held_out: tuple[Sample, ...]
    used: tuple[int, int]
    dropped: Counter[str]
    replies: int
    masked: int
    cut: int

    @property
    def account(self) -> str:
        """What became of its records, for people."""
        dropped, (learned, held_out) = sum(self.dropped.values()), self.used
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.dropped.most_common(5))
        return (
            f"{self.data.name}: {learned + held_out + dropped} records: {learned} learned, "
            f"{held_out} held out, {dropped} dropped{f' ({reasons})' if dropped else ''}"
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


def contents(data: RecordedData, folder: str) -> Iterator[tuple[str, Conversation | Text]]:
    """Yields the conversations and texts of a data set, each with its place. ValueError, with file,
    line and field, for one that cannot be read."""
    for file in files_of(data, folder):
        for place, record in records(file):
            try:
                yield place, read_record(record)
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from None


class Reader:
    """Reads one data set. A record is dropped for the first reason that there is."""

    def __init__(self, data: RecordedData, terms: Terms, tokenizer: ChatTokenizer):
        self._data, self._terms, self._tokenizer = data, terms, tokenizer
        self._dropped: Counter[str] = Counter()
        self._replies = self._masked = self._cut = 0

    def read(self, on_progress: Callable[[int], None]) -> RecordedSet:
        """on_progress: is told how many records were read.

        ValueError for a file that is damaged, or if nothing is left to learn.
        """
        kept: tuple[list[Sample], list[Sample]] = ([], [])
        used = [0, 0]
        for number, (place, each) in enumerate(contents(self._data, self._terms.folder), 1):
            try:
                samples = self._samples(each)
                is_held_out = self._is_held_out(each.beginning)
                kept[is_held_out].extend(samples)
                used[is_held_out] += 1
            except Dropped as reason:
                self._dropped[str(reason)] += 1
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from None
            on_progress(number)
        counts = self._dropped, self._replies, self._masked, self._cut
        learned, held_out = map(tuple, kept)
        found = RecordedSet(self._data, learned, held_out, (used[0], used[1]), *counts)
        if not learned:
            raise ValueError(f"warm_start.data {found.account}: there is nothing to learn")
        return found

    def _samples(self, each: Conversation | Text) -> list[Sample]:
        least, shape = self._data.min_reward, self._terms.shape
        item = None if isinstance(each, Text) else each.item
        if least and each.reward is None and item is None:
            raise ValueError("reward: it is missing, and data.min_reward is above 0")
        if least and (each.reward or 0.0) < least:
            raise Dropped(POOR)
        if item and self._terms.is_evaluated(item):
            raise Dropped(EVALUATED)
        if isinstance(each, Text):
            return text_samples(each.text, self._tokenizer, shape.pack_length)
        return [self._sample(each)]

    def _sample(self, conversation: Conversation) -> Sample:
        warm, shape = self._terms.warm, self._terms.shape
        mask = conversation.mask(warm.mask_errors, warm.mask_repeats)
        sample = sample_of(conversation, mask, self._tokenizer, shape, self._data.too_long)
        self._replies += len(mask)
        self._masked += int((~mask).sum())
        self._cut += sample.num_chunks < int(mask.sum())
        return sample

    def _is_held_out(self, beginning: bytes) -> bool:
        share = self._terms.warm.held_out_share
        return int.from_bytes(beginning[:8]) < share * 2**64
