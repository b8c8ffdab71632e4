"""What a warm start learns from, and what it is measured by: oracles' transcripts, and recorded
conversations."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

from ale_jax.agent.transcripts import Transcript
from ale_jax.algo.losses import count_loss_denominator
from ale_jax.config.run import RunConfig
from ale_jax.data.mixing import end_of_epochs, mix
from ale_jax.data.packing import Sample, pack_all
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.recorded.conversation import Conversation, ItemKey
from ale_jax.recorded.files import read_all
from ale_jax.recorded.formats import read_record
from ale_jax.recorded.pairs import Continuation, of_pair
from ale_jax.recorded.plain import Text
from ale_jax.recorded.sets import Reader, RecordedSet, Terms
from ale_jax.records import Batch
from ale_jax.system.demonstrations import conversation_of, tokenize
from ale_jax.system.stage import HELD_OUT_LOSS, PROBE_SUCCESS
from ale_jax.system.trainer import Trainer
from ale_jax.system.warm_start import full_rows
from ale_jax.worlds.schedule import Schedule


@dataclasses.dataclass(frozen=True)
class Imitated:
    """demonstrated: of each domain, the oracle's transcripts as samples. sets: recorded ones.
    probed: transcripts of unseen tasks; none if nothing is demonstrated."""

    config: RunConfig
    demonstrated: Sequence[Sequence[Sample]]
    sets: Sequence[RecordedSet]
    probed: Sequence[Sample]

    def updates(self) -> Iterator[list[Batch]]:
        """Yields the batches of each update."""
        warm, shape = self.config.warm_start, self.config.learn
        return full_rows(self._samples(), warm.rows_per_step, shape)

    def count_updates(self) -> int:
        """Returns how many updates there are at most. With epochs these are counted, so that the
        schedule of the learning rate ends with them."""
        warm = self.config.warm_start
        if not warm.epochs:
            return warm.max_steps
        return sum(1 for _ in itertools.islice(self.updates(), warm.max_steps))

    def _samples(self) -> Iterator[Sample]:
        """Yields what is learned, in the ratios of the config, to the end of the epochs if there
        are to be some."""
        recorded = [each.learned for each in self.sets]
        ratios = tuple(domain.ratio for domain in self.config.demonstrated)
        ratios += tuple(each.data.ratio for each in self.sets)
        mixed = mix([*self.demonstrated, *recorded], ratios, self.config.seed)
        if not (epochs := self.config.warm_start.epochs):
            return mixed
        sizes = [0] * len(self.demonstrated) + [len(each) for each in recorded]
        return itertools.islice(mixed, end_of_epochs(sizes, ratios, epochs))

    def measure(self, trainer: Trainer) -> Callable[[], dict[str, float]]:
        """Returns what measures the policy for `warm_start`. The loss on what is held out is the
        mean over its tokens for each set, and the mean over the sets in their ratios."""
        shape = self.config.learn
        probed = pack_all(self.probed, shape)
        held_out = [(each, pack_all(each.held_out, shape)) for each in self.sets if each.held_out]

        def measured() -> dict[str, float]:
            figures = {}
            if probed:
                figures[PROBE_SUCCESS] = trainer.probability(probed) / len(self.probed)
            losses = [(each.data, _loss(trainer, batches)) for each, batches in held_out]
            if losses:
                whole = sum(data.ratio for data, _ in losses)
                figures[HELD_OUT_LOSS] = sum(data.ratio * loss for data, loss in losses) / whole
            return figures | {f"{HELD_OUT_LOSS}/{data.name}": loss for data, loss in losses}

        return measured


def _loss(trainer: Trainer, batches: Sequence[Batch]) -> float:
    return trainer.nll(batches) / float(count_loss_denominator(batches, "tokens"))


def texts(
    config: RunConfig, domains: Sequence[Sequence[Transcript]]
) -> Iterator[Conversation | Text | Continuation]:
    """Yields all that is learned from, of which a tokenizer can be trained."""
    yield from map(conversation_of, itertools.chain(*domains))
    for data in config.warm_start.data:
        yield from (told for _, told in read_all(data, config.worlds.folder, read_record))
    for pairs in config.preferences.data:
        for _, pair in read_all(pairs, config.worlds.folder, of_pair):
            yield from (pair.chosen, pair.rejected)


def read_sets(
    config: RunConfig,
    tokenizer: ChatTokenizer,
    check: Callable[[], None],
    record: Callable[[str, str], None],
) -> list[RecordedSet]:
    """Reads the recorded conversations, and records an event for each set that says what became of
    them. check: is called between conversations, and may end it. ValueError as from `Reader`."""
    schedule = Schedule.of(config)

    def is_evaluated(item: ItemKey) -> bool:
        _, family, name = item
        return schedule.is_evaluated(family, name)

    folder = config.worlds.folder
    terms = Terms(config.warm_start, config.learn, folder, is_evaluated)
    sets = []
    for data in config.warm_start.data:
        found = Reader(data, terms, tokenizer).read(lambda number: check())
        record("recorded_data", found.account)
        sets.append(found)
    return sets


def demonstrated_samples(
    config: RunConfig, domains: Sequence[Sequence[Transcript]], tokenizer: ChatTokenizer
) -> list[list[Sample]]:
    """Returns the oracles' transcripts of each domain as samples, without the masked chunks."""
    warm = config.warm_start

    def sample(transcript: Transcript) -> Sample:
        mask = conversation_of(transcript).mask(warm.mask_errors, warm.mask_repeats)
        return tokenize(transcript, tokenizer, mask)

    return [[sample(each) for each in domain] for domain in domains]
