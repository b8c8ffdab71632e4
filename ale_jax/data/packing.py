"""Packs trajectories of any length into batches of one fixed shape, so the step compiles once.

Alignment: entry t of every [B, T] array belongs to token t itself. logp_mu_BT[b, t] is the
log-probability of tokens_BT[b, t] given the tokens of the same segment before it, which the learner
reads from its logits at t - 1. The first token of a segment therefore has none, and no chunk may
begin there.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ale_jax.config.engine import PLAIN, Sampling
from ale_jax.config.learn import Shape
from ale_jax.data.reading import read_tokens
from ale_jax.data.row_masks import Masks, RowMasks
from ale_jax.records import (
    FREE,
    MAX_MASKS,
    OUTSIDE,
    UNCREDITED,
    Batch,
    SideBranch,
    Trajectory,
    Turn,
)

Ids = Sequence[int] | NDArray[np.int32]  # of tokens


@dataclasses.dataclass(frozen=True)
class Sample:
    """A trajectory's turns with their credit.

    The first `num_prefix_turns` turns were not sampled; the others are its C chunks, without those
    whose numbers are `uncredited`, which are context.
    advantage_C: float32, one per chunk.
    reward_C: float32, each chunk's own reward; None: the reward of its turn.
    imitate_P: float32, one per prefix turn, the weight of its tokens in the imitation term; None:
    0.
    group, member, weight: as in `Batch`. expert_TLK, for all its tokens, mask_Iw and sampling: as
    in `Trajectory`.

    Of three turns the first one was given, and the others are chunks with the advantages 1/2 and 1:

        turns         given     first    second
        advantage_C             0.5      1.0       num_prefix_turns 1, num_chunks 2
        reward_C                0.0      1.0
        imitate_P     0.25
    """

    turns: tuple[Turn, ...]
    advantage_C: NDArray[np.float32]
    num_prefix_turns: int = 0
    group: int = 0
    member: int = 0
    reward_C: NDArray[np.float32] | None = None
    imitate_P: NDArray[np.float32] | None = None
    expert_TLK: NDArray[np.int16] | None = None
    mask_Iw: NDArray[np.int32] | None = None
    uncredited: frozenset[int] = frozenset()
    weight: float = 1.0
    sampling: Sampling = PLAIN

    def __post_init__(self) -> None:
        assert len(self.advantage_C) == self.num_chunks, (self.advantage_C, self.num_chunks)
        assert self.reward_C is None or len(self.reward_C) == self.num_chunks, self.reward_C
        assert self.imitate_P is None or len(self.imitate_P) == self.num_prefix_turns, (
            self.imitate_P
        )
        assert self.mask_Iw is not None or all(turn.mask_id is None for turn in self.chunks)

    @classmethod
    def of(
        cls,
        trajectory: Trajectory,
        advantage_C: np.ndarray,
        branch: Trajectory | SideBranch | None = None,
        **more: Any,
    ) -> Sample:
        """Makes a sample of a trajectory's longest conversation, or of another one. more: the other
        fields of the sample."""
        conversation = branch or trajectory
        return cls(
            turns=conversation.turns,
            advantage_C=advantage_C,
            num_prefix_turns=conversation.num_prefix_turns,
            member=trajectory.episode.key.member,
            expert_TLK=conversation.expert_TLK,
            mask_Iw=trajectory.mask_Iw,
            sampling=trajectory.sampling,
            **more,
        )

    @functools.cached_property
    def num_tokens(self) -> int:
        return sum(map(turn_tokens, self.turns))

    @property
    def num_chunks(self) -> int:
        return len(self.turns) - self.num_prefix_turns - len(self.uncredited)

    @functools.cached_property
    def chunk_turns(self) -> list[int]:
        """The numbers of the turns that are chunks."""
        sampled = range(self.num_prefix_turns, len(self.turns))
        return [number for number in sampled if number not in self.uncredited]

    @functools.cached_property
    def chunks(self) -> tuple[Turn, ...]:
        return tuple(self.turns[number] for number in self.chunk_turns)

    @functools.cached_property
    def masks(self) -> Masks:
        """The sampling masks that its chunks were sampled under."""
        if self.mask_Iw is None:
            return {}
        ids = [turn.mask_id for turn in self.chunks if turn.mask_id is not None]
        numbers = np.unique(np.concatenate(ids)) if ids else ()
        return {int(n): self.mask_Iw[n].tobytes() for n in numbers if n >= 0}


def demonstration(exchanges: Sequence[tuple[Ids, Ids]]) -> Sample:
    """Makes a transcript to imitate from pairs of prompt ids and assistant ids; the latter are
    learned.

        >>> sample = demonstration([([5, 8], [3, 1]), ([6], [2])])
        >>> sample.num_tokens, sample.num_chunks, sample.advantage_C.tolist()
        (6, 2, [1.0, 1.0])
    """
    turns = tuple(text_turn(prompt, action) for prompt, action in exchanges)
    return Sample(turns, np.ones(len(turns), np.float32))


def text_turn(
    prompt_ids: Ids,
    action_ids: Ids,
    prompt_text: str = "",
    action_text: str = "",
) -> Turn:
    """Makes a turn that was not sampled in the run: log-probabilities are 0, versions -1."""
    zeros = np.zeros(len(action_ids), np.float32)
    return Turn(
        prompt_ids=np.asarray(prompt_ids, np.int32),
        action_ids=np.asarray(action_ids, np.int32),
        logp_mu=zeros,
        logp_old=zeros,
        version=np.full(len(action_ids), -1, np.int32),
        action_text=action_text,
        prompt_text=prompt_text,
    )


def pack(samples: Sequence[Sample], shape: Shape) -> tuple[Batch, list[Sample]]:
    """Fills one batch: first fit, longest sample first. Returns it and the samples left over.

    Deterministic: the same samples in the same order give the same batch; the samples left over
    keep their order. Samples are not split between rows. A sample without turns has nothing to
    learn from and takes no space. ValueError for a sample that does not fit an empty row.

    Two transcripts in one row of nine tokens:

        >>> samples = [demonstration([([5], [3])]), demonstration([([5, 8], [3, 1]), ([6], [2])])]
        >>> batch, leftover = pack(samples, Shape(1, 9, 4))
        >>> for array_BT in (batch.tokens_BT, batch.segment_BT, batch.position_BT, batch.chunk_BT):
        ...     print(*(f"{x:2}" for x in array_BT[0]))
         5  8  3  1  6  2  5  3  0
         1  1  1  1  1  1  2  2  0
         0  1  2  3  4  5  0  1  0
        -1 -1  0  0 -1  1 -1  2 -1
    """
    (batch,), leftover = pack_rows(samples, shape.microbatch_rows, shape)
    return batch, leftover


def pack_rows(
    samples: Sequence[Sample], count: int, shape: Shape
) -> tuple[list[Batch], list[Sample]]:
    """Fills `count` rows as `pack` does, in as many batches as they take. Returns them and the
    samples left over. Which samples are taken does not depend on the rows of a batch.

    >>> samples = [demonstration([([5], [3, 1])])] * 4
    >>> batches, leftover = pack_rows(samples, 3, Shape(2, 3, 1))
    >>> [(batch.segment_BT > 0).any(axis=1).tolist() for batch in batches], len(leftover)
    ([[True, True], [True, False]], 1)
    """
    for sample in samples:
        _check_fits(sample, shape)
    batches, leftover = _filled_rows(samples, count, shape)
    return _with_reads(batches), leftover


def _filled_rows(
    samples: Sequence[Sample], count: int, shape: Shape
) -> tuple[list[Batch], list[Sample]]:
    rows, leftover = _assign_rows(samples, dataclasses.replace(shape, microbatch_rows=count))
    batches = []
    for first in range(0, count, shape.microbatch_rows):
        batch = _empty_batch(shape, samples)
        for b, row in enumerate(rows[first : first + shape.microbatch_rows]):
            _fill_row(batch, b, row.samples)
            _fill_masks(batch, b, row)
        batches.append(batch)
    return batches, leftover


def _with_reads(batches: Sequence[Batch]) -> list[Batch]:
    """Fills in read_BR, for losses of what the policy wrote and of what it imitates."""
    read = read_tokens([(b.chunk_BT >= 0) | (b.imitate_BT != 0.0) for b in batches])
    return [
        dataclasses.replace(batch, read_BR=read_BR)
        for batch, read_BR in zip(batches, read, strict=True)
    ]


def pack_all(samples: Sequence[Sample], shape: Shape) -> list[Batch]:
    """Fills as many batches of this shape as all samples need: the microbatches of a step.

    >>> samples = [demonstration([([5], [3, 1])])] * 3
    >>> len(pack_all(samples, Shape(1, 6, 2)))
    2
    """
    batches = []
    leftover = [s for s in samples if s.turns]
    for sample in leftover:
        _check_fits(sample, shape)
    while leftover:
        (batch,), leftover = _filled_rows(leftover, shape.microbatch_rows, shape)
        batches.append(batch)
    return _with_reads(batches)


def _check_fits(sample: Sample, shape: Shape) -> None:
    if sample.num_tokens > shape.pack_length:
        raise ValueError(
            f"a trajectory of {sample.num_tokens} tokens does not fit a row of "
            f"{shape.pack_length}: set learn.pack_length to {sample.num_tokens} or more"
        )
    if sample.num_chunks > shape.chunks_per_pack:
        raise ValueError(
            f"a trajectory of {sample.num_chunks} chunks does not fit {shape.chunks_per_pack} per "
            f"row: set learn.chunks_per_pack to {sample.num_chunks} or more"
        )
    if sample.turns and len(sample.turns[0].prompt_ids) == 0:
        raise ValueError("a trajectory begins with a policy token: give its first turn a prompt")
    assert all(len(t.action_ids) > 0 for t in sample.turns), "a turn without action tokens"
    assert len(sample.masks) <= _most_masks([sample], shape), "more masks than an episode may have"


def _most_masks(samples: Sequence[Sample], shape: Shape) -> int:
    """Returns how many distinct sampling masks a row has room for. If what each token is drawn from
    is cut, a mask for each token: no row is closed, and nothing is left out, for want of room."""
    return shape.pack_length if any(each.sampling.cuts for each in samples) else MAX_MASKS


class _Row:
    """A row that is being filled."""

    def __init__(self, shape: Shape, most_masks: int):
        self._free_tokens, self._free_chunks = shape.pack_length, shape.chunks_per_pack
        self.samples: list[Sample] = []
        self.masks = RowMasks(most_masks)

    def has_room(self, sample: Sample) -> bool:
        return (
            self._free_tokens >= sample.num_tokens
            and self._free_chunks >= _room(sample)
            and self.masks.has_room(sample.masks)
        )

    def is_closed(self, shortest: int) -> bool:
        """Whether it has no room for any of some samples, which have `shortest` tokens or more."""
        return self._free_tokens < shortest or self._free_chunks < 1

    def add(self, sample: Sample) -> None:
        self.samples.append(sample)
        self._free_tokens -= sample.num_tokens
        self._free_chunks -= _room(sample)
        self.masks.add(sample.masks)


def _room(sample: Sample) -> int:
    """Returns how many chunks it takes the room of."""
    return max(sample.num_chunks, 1)


def _assign_rows(samples: Sequence[Sample], shape: Shape) -> tuple[list[_Row], list[Sample]]:
    most_masks = _most_masks(samples, shape)
    rows = [_Row(shape, most_masks) for _ in range(shape.microbatch_rows)]
    unplaced: list[int] = []
    # sorted() is stable, so equal lengths keep their order and the packing is reproducible.
    order = sorted(range(len(samples)), key=lambda i: -samples[i].num_tokens)
    shortest = samples[order[-1]].num_tokens if order else 0
    for place, i in enumerate(order):
        row = next((row for row in rows if row.has_room(samples[i])), None)
        if row is not None:
            if samples[i].turns:
                row.add(samples[i])
            continue
        unplaced.append(i)
        if all(row.is_closed(shortest) for row in rows):  # as it soon is for a long list
            unplaced += order[place + 1 :]
            break
    return rows, [samples[i] for i in sorted(unplaced)]


def _empty_batch(shape: Shape, samples: Sequence[Sample]) -> Batch:
    """Makes a batch of padding; it has arrays of experts, temperatures, masks and weights if some
    sample needs them."""
    BT = shape.microbatch_rows, shape.pack_length
    LK = next((s.expert_TLK.shape[1:] for s in samples if s.expert_TLK is not None), None)
    is_tempered = any(s.sampling.temperature != 1 for s in samples)
    w = next((s.mask_Iw.shape[1] for s in samples if s.mask_Iw is not None), None)
    is_weighted = any(s.weight != 1.0 for s in samples)
    return Batch(
        tokens_BT=np.zeros(BT, np.int32),
        segment_BT=np.zeros(BT, np.int32),
        position_BT=np.zeros(BT, np.int32),
        chunk_BT=np.full(BT, OUTSIDE, np.int32),
        group_BT=np.full(BT, -1, np.int32),
        member_BT=np.full(BT, -1, np.int32),
        logp_mu_BT=np.zeros(BT, np.float32),
        logp_old_BT=np.zeros(BT, np.float32),
        version_BT=np.zeros(BT, np.int32),
        advantage_BT=np.zeros(BT, np.float32),
        reward_BT=np.zeros(BT, np.float32),
        imitate_BT=np.zeros(BT, np.float32),
        expert_BTLK=None if LK is None else np.full(BT + LK, -1, np.int16),
        temperature_BT=np.ones(BT, np.float32) if is_tempered else None,
        mask_id_BT=None if w is None else np.full(BT, FREE, np.int16),
        mask_BIw=None if w is None else np.zeros((BT[0], _most_masks(samples, shape), w), np.int32),
        weight_BT=np.ones(BT, np.float32) if is_weighted else None,
    )


def _fill_row(batch: Batch, b: int, samples: Sequence[Sample]) -> None:
    start, first_chunk = 0, 0
    for segment, sample in enumerate(samples, start=1):
        end = start + sample.num_tokens
        batch.segment_BT[b, start:end] = segment
        batch.position_BT[b, start:end] = np.arange(end - start)
        batch.group_BT[b, start:end] = sample.group
        batch.member_BT[b, start:end] = sample.member
        if sample.expert_TLK is not None:
            assert batch.expert_BTLK is not None, "an empty batch has room for experts"
            batch.expert_BTLK[b, start:end] = sample.expert_TLK
        if batch.weight_BT is not None:
            batch.weight_BT[b, start:end] = sample.weight
        chunk_of = {index: c for c, index in enumerate(sample.chunk_turns)}
        for index, turn in enumerate(sample.turns):
            written = slice(start + len(turn.prompt_ids), start + turn_tokens(turn))
            batch.tokens_BT[b, start : written.start] = turn.prompt_ids
            batch.tokens_BT[b, written] = turn.action_ids
            if index in chunk_of:
                batch.chunk_BT[b, written] = first_chunk + chunk_of[index]
                _fill_chunk(batch, b, written, sample, chunk_of[index])
            elif index in sample.uncredited:
                batch.chunk_BT[b, written] = UNCREDITED
            elif sample.imitate_P is not None:
                batch.imitate_BT[b, written] = sample.imitate_P[index]
            start = written.stop
        first_chunk += sample.num_chunks
        assert start == end, (start, end)


def _fill_chunk(batch: Batch, b: int, written: slice, sample: Sample, c: int) -> None:
    """Writes the arrays of the sample's chunk c, except its id and tokens."""
    turn = sample.chunks[c]
    batch.logp_mu_BT[b, written] = turn.logp_mu
    batch.logp_old_BT[b, written] = turn.logp_old
    batch.version_BT[b, written] = turn.version
    if batch.temperature_BT is not None:
        batch.temperature_BT[b, written] = sample.sampling.temperature
    batch.advantage_BT[b, written] = sample.advantage_C[c]
    reward = turn.reward if sample.reward_C is None else sample.reward_C[c]
    batch.reward_BT[b, written.stop - 1] = reward


def _fill_masks(batch: Batch, b: int, row: _Row) -> None:
    """Writes the row's sampling masks, and of each policy token the number of its own."""
    if batch.mask_id_BT is None or batch.mask_BIw is None:
        return  # no sample of the batch was held to a mask
    row.masks.fill(batch.mask_BIw[b])
    ids = [row.masks.ids(turn, each.masks) for each in row.samples for turn in each.chunks]
    if ids:
        batch.mask_id_BT[b, batch.chunk_BT[b] >= 0] = np.concatenate(ids)


def turn_tokens(turn: Turn) -> int:
    """Counts the tokens of a turn, those that were read and those that were written."""
    return len(turn.prompt_ids) + len(turn.action_ids)
