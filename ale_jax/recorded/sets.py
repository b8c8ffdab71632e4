"""The data sets of a warm start: what is learned of their records, and what is not, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ale_jax.config.learn import Shape
from ale_jax.config.recorded import RecordedData
from ale_jax.config.worlds import WarmStartConfig
from ale_jax.data.packing import Sample
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.recorded.conversation import Conversation, ItemKey
from ale_jax.recorded.files import read_all
from ale_jax.recorded.formats import read_record
from ale_jax.recorded.kept import Kept, keep
from ale_jax.recorded.plain import Text, text_samples
from ale_jax.recorded.samples import Dropped, sample_of

POOR, EVALUATED = "below min_reward", "played in this run's evaluations"


@dataclasses.dataclass(frozen=True)
class RecordedSet(Kept[Sample]):
    """Samples, one of each conversation, and some of each plain text. replies, masked: of
    conversations that are not dropped; masked ones are not learned. cut: conversations that were
    cut behind a reply.
    """

    data: RecordedData
    replies: int
    masked: int
    cut: int

    @property
    def account(self) -> str:
        """What became of its records, for people."""
        return (
            f"{self.data.name}: {super().account}; {self.replies} replies, {self.masked} of them "
            f"masked; {self.cut} conversations cut"
        )


@dataclasses.dataclass(frozen=True)
class Terms:
    """How conversations become samples. folder: of relative files. is_evaluated: whether a run
    plays an item in its evaluations, or may."""

    warm: WarmStartConfig
    shape: Shape
    folder: str = ""
    is_evaluated: Callable[[ItemKey], bool] = lambda item: False


class Reader:
    """Reads one data set. A record is dropped for the first reason that there is."""

    def __init__(self, data: RecordedData, terms: Terms, tokenizer: ChatTokenizer):
        self._data, self._terms, self._tokenizer = data, terms, tokenizer
        self._replies = self._masked = self._cut = 0

    def read(self, on_progress: Callable[[int], None]) -> RecordedSet:
        """on_progress: is told how many records were read.

        ValueError for a file that is damaged, or if nothing is left to learn.
        """
        told = read_all(self._data, self._terms.folder, read_record)
        kept = keep(told, self._samples, self._terms.warm.held_out_share, on_progress)
        counts = self._replies, self._masked, self._cut
        ends = kept.used, kept.dropped
        found = RecordedSet(kept.learned, kept.held_out, *ends, self._data, *counts)
        if not found.learned:
            raise ValueError(f"{self._data.LIST} {found.account}: there is nothing to learn")
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
