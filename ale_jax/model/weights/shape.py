"""The shape of a run's policy."""

from __future__ import annotations

import functools

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.run import RunConfig
from ale_jax.model.weights.config import read_text


def policy_shape(config: RunConfig, tokenizer_size: int) -> PolicyShape:
    """Returns the shape of the run's policy. tokenizer_size: number of tokens that the tokenizer
    has, which a policy without given weights has, too. ValueError for a damaged architecture."""
    if config.architecture:
        return _described(config.architecture)
    return config.model.policy_shape(
        config.tokenizer.vocab_size if config.weights else tokenizer_size
    )


@functools.lru_cache(maxsize=8)
def _described(architecture: str) -> PolicyShape:
    return read_text(architecture, "config.architecture")
