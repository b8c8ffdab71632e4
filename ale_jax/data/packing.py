"""Trajectories of any length into batches of one fixed shape, so that the step compiles once.

Alignment: every [B, T] array speaks of token t itself. logp_mu_BT[b, t] is the log-probability of
tokens_BT[b, t] given the tokens of the same segment before it, which the learner finds in its
logits at t - 1. So the first token of a segment has none, and no chunk may begin there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ale_jax.records import Batch, Trajectory, Turn


@dataclasses.dataclass(frozen=True)
class Sample:
    """A trajectory's turns with the credit that they earned.

    advantage_C: float32, one per turn. positive: the trajectory belongs to T+ (Eq 9).
    expert_TLK: of all its tokens, as in `Trajectory`.
    """

    turns: tuple[Turn, ...]
    advantage_C: np.ndarray
    positive: bool
    expert_TLK: np.ndarray | None = None

    @classmethod
    def of(cls, trajectory: Trajectory, advantage_C: np.ndarray, positive: bool) -> Sample:
        return cls(trajectory.turns, advantage_C, positive, trajectory.expert_TLK)

    @property
    def num_tokens(self) -> int:
        return sum(len(t.prompt_ids) + len(t.action_ids) for t in self.turns)


@dataclasses.dataclass(frozen=True)
class Shape:
    """Of one batch: `rows` of `row_tokens` tokens, with room for `chunks_per_row` chunks each."""

    rows: int
    row_tokens: int
    chunks_per_row: int

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"{field.name} {getattr(self, field.name)} must be at least 1")


def demonstration(exchanges: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Sample:
    """A transcript to imitate, as (prompt ids, assistant ids) pairs; only the latter are learned.

    Nobody sampled its tokens, so their log-probabilities and versions are 0 and mean nothing.
    """
    turns = tuple(_demonstrated_turn(prompt, action) for prompt, action in exchanges)
    return Sample(turns, np.ones(len(turns), np.float32), positive=True)


def _demonstrated_turn(prompt: Sequence[int], action: Sequence[int]) -> Turn:
    zeros = np.zeros(len(action), np.float32)
    return Turn(
        prompt_ids=np.asarray(prompt, np.int32),
        action_ids=np.asarray(action, np.int32),
        logp_mu=zeros,
        logp_old=zeros,
        version=np.zeros(len(action), np.int32),
        action_text="",
        prompt_text="",
    )


def pack(samples: Sequence[Sample], shape: Shape) -> tuple[Batch, list[Sample]]:
    """Fills one batch: first fit, longest sample first. Returns it and what did not fit.

    Deterministic: the same samples in the same order give the same batch; the leftovers keep their
    order. A sample lies whole in one row. A sample without turns has nothing to learn from and
    takes no space. ValueError for a sample that fits no empty row.
    """
    rows, leftover = _assign_rows(samples, shape)
    batch = _empty_batch(shape, samples)
    for b, row in enumerate(rows):
        _fill_row(batch, b, row)
    return batch, leftover


def pack_all(samples: Sequence[Sample], shape: Shape) -> list[Batch]:
    """As many batches of the one shape as all samples need: the microbatches of a step."""
    batches = []
    leftover = [s for s in samples if s.turns]
    while leftover:
        batch, leftover = pack(leftover, shape)
        batches.append(batch)
    return batches


def _check_fits(sample: Sample, shape: Shape) -> None:
    if sample.num_tokens > shape.row_tokens:
        raise ValueError(
            f"a trajectory of {sample.num_tokens} tokens does not fit a row of {shape.row_tokens}: "
            "raise row_tokens, or lower the context limit of the rollouts"
        )
    if len(sample.turns) > shape.chunks_per_row:
        raise ValueError(
            f"a trajectory of {len(sample.turns)} chunks does not fit {shape.chunks_per_row} per "
            "row: raise chunks_per_row, or lower the turn limit of the rollouts"
        )
    if sample.turns and len(sample.turns[0].prompt_ids) == 0:
        raise ValueError("a trajectory begins with a policy token: give its first turn a prompt")
    assert len(sample.advantage_C) == len(sample.turns), (sample.advantage_C, len(sample.turns))
    assert all(len(t.action_ids) > 0 for t in sample.turns), "a turn in which nothing was written"


def _assign_rows(
    samples: Sequence[Sample], shape: Shape
) -> tuple[list[list[Sample]], list[Sample]]:
    for sample in samples:
        _check_fits(sample, shape)
    rows: list[list[Sample]] = [[] for _ in range(shape.rows)]
    free_tokens = [shape.row_tokens] * shape.rows
    free_chunks = [shape.chunks_per_row] * shape.rows
    unplaced = []
    # sorted() is stable, so equal lengths keep their order and the packing is reproducible.
    for i in sorted(range(len(samples)), key=lambda i: -samples[i].num_tokens):
        tokens, chunks = samples[i].num_tokens, len(samples[i].turns)
        fits = (
            b for b in range(shape.rows) if free_tokens[b] >= tokens and free_chunks[b] >= chunks
        )
        b = next(fits, None)
        if b is None:
            unplaced.append(i)
        elif chunks > 0:
            rows[b].append(samples[i])
            free_tokens[b] -= tokens
            free_chunks[b] -= chunks
    return rows, [samples[i] for i in sorted(unplaced)]


def _empty_batch(shape: Shape, samples: Sequence[Sample]) -> Batch:
    """With room for experts if they are known of some sample."""
    BT, BC = (shape.rows, shape.row_tokens), (shape.rows, shape.chunks_per_row)
    LK = next((s.expert_TLK.shape[1:] for s in samples if s.expert_TLK is not None), None)
    return Batch(
        tokens_BT=np.zeros(BT, np.int32),
        segment_BT=np.zeros(BT, np.int32),
        position_BT=np.zeros(BT, np.int32),
        chunk_BT=np.full(BT, -1, np.int32),
        logp_mu_BT=np.zeros(BT, np.float32),
        logp_old_BT=np.zeros(BT, np.float32),
        version_BT=np.zeros(BT, np.int32),
        advantage_BC=np.zeros(BC, np.float32),
        positive_BC=np.zeros(BC, bool),
        expert_BTLK=None if LK is None else np.full(BT + LK, -1, np.int16),
    )


def _fill_row(batch: Batch, b: int, samples: Sequence[Sample]) -> None:
    start, chunk = 0, 0
    for segment, sample in enumerate(samples, start=1):
        end = start + sample.num_tokens
        batch.segment_BT[b, start:end] = segment
        batch.position_BT[b, start:end] = np.arange(end - start)
        if sample.expert_TLK is not None:
            batch.expert_BTLK[b, start:end] = sample.expert_TLK
        chunks = slice(chunk, chunk + len(sample.turns))
        batch.advantage_BC[b, chunks] = sample.advantage_C
        batch.positive_BC[b, chunks] = sample.positive
        for turn in sample.turns:
            start = _write_turn(batch, b, start, chunk, turn)
            chunk += 1
        assert start == end, (start, end)


def _write_turn(batch: Batch, b: int, start: int, chunk: int, turn: Turn) -> int:
    """Returns the index after the turn's last token."""
    written = start + len(turn.prompt_ids)
    end = written + len(turn.action_ids)
    batch.tokens_BT[b, start:written] = turn.prompt_ids
    batch.tokens_BT[b, written:end] = turn.action_ids
    batch.chunk_BT[b, written:end] = chunk
    batch.logp_mu_BT[b, written:end] = turn.logp_mu
    batch.logp_old_BT[b, written:end] = turn.logp_old
    batch.version_BT[b, written:end] = turn.version
    return end
