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
        shape = _described(config.architecture)
        if shape.is_recurrent:
            _check_recurrent(config)
        return shape
    return config.model.policy_shape(
        config.tokenizer.vocab_size if config.weights else tokenizer_size
    )


def _check_recurrent(config: RunConfig) -> None:
    """Raises ValueError for what recurrent layers cannot honour."""
    why = "the policy has recurrent layers, "
    if config.mesh.context > 1:
        raise ValueError(
            f"mesh.context {config.mesh.context}: {why}which take the tokens of a row one after "
            "another: set it to 1"
        )
    if config.engine.share_replies:
        raise ValueError(
            f"engine.share_replies True: {why}and a page is of no use without the state behind it: "
            "set it to False"
        )
    if config.engine.speculative_tokens:
        raise ValueError(
            f"engine.speculative_tokens {config.engine.speculative_tokens}: {why}and the tokens of "
            "a wrong guess cannot be taken back from a state: set it to 0"
        )
    if config.attention_credit.credit != "none":
        raise ValueError(
            f"attention_credit.credit {config.attention_credit.credit!r}: {why}which have no "
            "attention to read it from: set it to 'none'"
        )


@functools.lru_cache(maxsize=8)
def _described(architecture: str) -> PolicyShape:
    return read_text(architecture, "config.architecture")
