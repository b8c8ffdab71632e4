"""A batch without padding: one random trajectory fills each row."""

from __future__ import annotations

import numpy as np

from ale_jax.config.algo import AdvantageHypers, AlgoConfig, MismatchHypers
from ale_jax.config.learn import Shape
from ale_jax.config.loss import LossHypers
from ale_jax.data.packing import Sample, pack
from ale_jax.records import Batch, Turn

GRPO = AlgoConfig(
    name="grpo",
    gamma=1.0,
    old_logp="sampler",
    advantage=AdvantageHypers("outcome", "group", "group"),
    loss=LossHypers("ppo", clip_low=0.2, clip_high=0.2),
    mismatch=MismatchHypers(),
)


def full_batch(
    vocab_size: int, rows: int, pack_length: int, prompt_tokens: int, first_id: int = 0
) -> Batch:
    """In each row, everything after the prompt is one chunk. Ids are random, from `first_id` on."""
    draw = np.random.default_rng(0)

    def sample() -> Sample:
        ids = draw.integers(first_id, vocab_size, pack_length, dtype=np.int32)
        written = pack_length - prompt_tokens
        logp = np.full(written, -np.log(vocab_size), np.float32)
        turn = Turn(
            prompt_ids=ids[:prompt_tokens],
            action_ids=ids[prompt_tokens:],
            logp_mu=logp,
            logp_old=logp,
            version=np.zeros(written, np.int32),
            action_text="",
            prompt_text="",
        )
        return Sample((turn,), draw.normal(size=1).astype(np.float32))

    batch, left_over = pack([sample() for _ in range(rows)], Shape(rows, pack_length, 1))
    assert not left_over and (batch.segment_BT > 0).all()
    return batch
