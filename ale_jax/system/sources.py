"""The weights and the tokenizer that a config names: that they are there, and fit the model."""

from __future__ import annotations

import dataclasses

from ale_jax.config.model import PolicyShape
from ale_jax.config.run import RunConfig
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.model.weights.hub import is_name, pinned
from ale_jax.model.weights.load import open_checkpoint, read_shape


def with_commits(config: RunConfig) -> RunConfig:
    """Returns the config in which names of models have the commit that they stand for now, so that
    all processes of a run, and a run that is continued, read the same files. Errors as `pinned`."""
    tokenizer = dataclasses.replace(config.tokenizer, path=pinned(config.tokenizer.path))
    return dataclasses.replace(config, weights=pinned(config.weights), tokenizer=tokenizer)


def check_sources(config: RunConfig, fetch: bool = True) -> None:
    """Raises ValueError unless the weights and the tokenizer that the config names are there, and
    fit the model and each other. fetch: False: of weights that a name stands for, only the
    description is fetched and read."""
    if config.weights:
        check_weights(config, fetch)
    if source := config.tokenizer.path or config.weights:
        tokenizer = ChatTokenizer.load(source)
        if config.weights:
            tokenizer.check_fits(config.tokenizer.vocab_size)


def check_weights(config: RunConfig, fetch: bool = True) -> None:
    """Raises ValueError unless `config.weights` has the model's shape. fetch: as for
    `check_sources`."""
    wanted = config.model.policy_shape(config.tokenizer.vocab_size)
    described = not fetch and is_name(config.weights)
    found = read_shape(config.weights) if described else open_checkpoint(config.weights).shape
    sections = {"vocab_size": "tokenizer"}
    differences = [
        f"config.{sections.get(name, 'model')}.{name} {value} (stored: {getattr(found, name)})"
        for name, value in dataclasses.asdict(wanted).items()
        if value != getattr(found, name) and _is_used(name, found)
    ]
    if differences:
        raise ValueError(f"{config.weights} has another shape: {', '.join(differences)}")


def _is_used(field: str, shape: PolicyShape) -> bool:
    """Whether a policy of this shape uses the field."""
    if field in ("experts_per_token", "expert_width", "norm_topk_prob"):
        return shape.is_moe
    return field != "mlp_width" or not all(map(shape.has_experts, range(shape.num_layers)))
