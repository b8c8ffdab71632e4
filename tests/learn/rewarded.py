"""Groups of conversations with rewards, as a step of reinforcement would have them."""

import dataclasses

import numpy as np

from ale_jax.config.learn import Shape
from ale_jax.data.packing import Sample, pack_all
from ale_jax.records import Batch, Turn

SHAPE = Shape(microbatch_rows=8, pack_length=64, chunks_per_pack=8)


def rewarded_samples(groups: int = 4, members: int = 4, seed: int = 0) -> list[Sample]:
    """Two turns each, of random tokens; the reward, 0 or 1, and an advantage of either sign."""
    draw = np.random.default_rng(seed)

    def turn(reward: float) -> Turn:
        zeros = np.zeros(draw.integers(4, 9), np.float32)
        return Turn(
            prompt_ids=draw.integers(4, 96, draw.integers(3, 9)).astype(np.int32),
            action_ids=draw.integers(4, 96, len(zeros)).astype(np.int32),
            logp_mu=zeros,
            logp_old=zeros,
            version=zeros.astype(np.int32),
            action_text="",
            prompt_text="",
            reward=reward,
        )

    return [
        Sample(
            turns=(turn(0.0), turn(float((group + member) % 2))),
            advantage_C=np.array([1.0, 2.0] if member % 2 else [-1.0, -2.0], np.float32),
            group=group,
            member=member,
        )
        for group in range(groups)
        for member in range(members)
    ]


def rewarded_batches(rows: int = SHAPE.microbatch_rows, **sizes: int) -> list[Batch]:
    return pack_all(rewarded_samples(**sizes), dataclasses.replace(SHAPE, microbatch_rows=rows))
