"""The data sets of preference pairs, as samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from ale_jax.config.learn import Shape
from ale_jax.config.recorded import DROP, PreferenceData
from ale_jax.config.run import RunConfig
from ale_jax.data.packing import Sample, demonstration
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.recorded.conversation import Conversation
from ale_jax.recorded.files import read_all
from ale_jax.recorded.kept import Kept, keep
from ale_jax.recorded.pairs import Continuation, Pair, of_pair
from ale_jax.recorded.samples import TOO_LONG, Dropped, sample_of

SAME = "both answers are the same"
SamplePair = tuple[Sample, Sample]  # of the chosen answer and of the rejected one


@dataclasses.dataclass(frozen=True)
class PairSet(Kept[SamplePair]):
    """The pairs of a data set."""

    data: PreferenceData

    @property
    def account(self) -> str:
        """What became of its records, for people."""
        return f"{self.data.name}: {super().account}"


def read_pairs(
    data: PreferenceData,
    config: RunConfig,
    tokenizer: ChatTokenizer,
    on_progress: Callable[[int], None],
) -> PairSet:
    """Returns the pairs of a data set. A pair is dropped if nothing of an answer is learned, or one
    does not fit. on_progress: is told how many were read.

    ValueError for a file that is damaged, or if nothing is left to learn.
    """
    hp, shape = config.preferences, config.learn

    def sample(answer: Conversation | Continuation) -> Sample:
        if isinstance(answer, Continuation):
            return _continued(answer, tokenizer, shape)
        mask = answer.mask(hp.mask_errors, hp.mask_repeats)
        return sample_of(answer, mask, tokenizer, shape, DROP)

    def samples(pair: Pair) -> list[SamplePair]:
        if pair.chosen == pair.rejected:
            raise Dropped(SAME)
        return [(sample(pair.chosen), sample(pair.rejected))]

    told = read_all(data, config.worlds.folder, of_pair)
    kept = keep(told, samples, hp.held_out_share, on_progress)
    found = PairSet(**vars(kept), data=data)
    if not found.learned:
        raise ValueError(f"{data.LIST} {found.account}: there is nothing to learn")
    return found


def _continued(answer: Continuation, tokenizer: ChatTokenizer, shape: Shape) -> Sample:
    """Returns a text as a sample, of which what goes on and its end are learned. Special tokens
    that it names are text."""
    end = np.array([tokenizer.end_of_text], np.int32)
    prompt_ids = np.concatenate([end, tokenizer.plain_ids(answer.prompt)]).astype(np.int32)
    written_ids = np.concatenate([tokenizer.plain_ids(answer.text), end]).astype(np.int32)
    if len(prompt_ids) + len(written_ids) > shape.pack_length:
        raise Dropped(TOO_LONG)
    return demonstration([(prompt_ids, written_ids)])
