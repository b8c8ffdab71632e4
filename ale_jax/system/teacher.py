"""The teacher: a reference policy with weights of another model, of the same tokenizer."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.run import RunConfig
from ale_jax.learn.reference import Reference
from ale_jax.learn.scores import make_score
from ale_jax.model.params import Params, is_param, param_table
from ale_jax.model.sharding import param_shardings
from ale_jax.model.tokenizer_folder import read_folder
from ale_jax.model.weights.hub import locate
from ale_jax.model.weights.load import load_params, open_checkpoint, read_shape
from ale_jax.worlds.endpoint import Endpoint


def teacher_shape(config: RunConfig, vocab_size: int) -> PolicyShape:
    """Returns the shape of the teacher, whose vocabulary is cut to the policy's `vocab_size`: many
    families pad theirs, each size by another number. ValueError if it is smaller, or there is no
    such teacher."""
    name = config.teacher.weights
    shape = read_shape(name)
    if shape.vocab_size < vocab_size:
        raise ValueError(
            f"config.teacher.weights {name} has {shape.vocab_size} tokens, and the policy "
            f"{vocab_size}, so that it could not score them all: choose a teacher with as many"
        )
    return dataclasses.replace(shape, vocab_size=vocab_size)


def open_teacher(config: RunConfig, policy: PolicyShape, mesh: Mesh) -> Reference:
    """Returns the teacher. Its weights are there already if they stay. ValueError as
    `teacher_shape`, or for a damaged checkpoint."""
    shape = teacher_shape(config, policy.vocab_size)
    dtype = jnp.dtype(config.learn.compute_dtype)
    read = functools.partial(_read, config.teacher.weights, shape, dtype, mesh)
    score = make_score(shape, mesh, config.learn, config.algo.loss.kl_top, replays=False)
    if config.teacher.stays:
        params = read()
        return Reference(lambda: params, score)
    return Reference(read, score)


def _read(source: str, shape: PolicyShape, dtype: jnp.dtype, mesh: Mesh) -> Params:
    checkpoint = open_checkpoint(source)
    whole = load_params(checkpoint, dtype, param_shardings(checkpoint.shape, mesh))
    places, size = param_shardings(shape, mesh), shape.vocab_size
    for name, cut in (("embed_VD", lambda x: x[:size]), ("head_DV", lambda x: x[:, :size])):
        if name in whole and size < checkpoint.shape.vocab_size:
            whole[name] = jax.jit(cut, out_shardings=places[name])(whole[name])
    return whole


def teacher_bytes(config: RunConfig, policy: PolicyShape, mesh: AbstractMesh | Mesh) -> int:
    """Returns the bytes of one device's part of the teacher's weights; 0 without a teacher. Errors
    as `teacher_shape`."""
    if not config.teacher.weights:
        return 0
    shape = teacher_shape(config, policy.vocab_size)
    table, places = param_table(shape), param_shardings(shape, mesh)
    sizes = jax.tree.map(
        lambda param, place: math.prod(place.shard_shape(param.shape)),
        *(table, places),
        is_leaf=is_param,
    )
    return sum(jax.tree.leaves(sizes)) * jnp.dtype(config.learn.compute_dtype).itemsize


def check_distillation(config: RunConfig) -> None:
    """Raises ValueError for a teacher, credit or groups that the loss does not read, and for
    replies that an endpoint could not score."""
    loss, teacher = config.algo.loss, config.teacher
    if teacher.weights and teacher.endpoint:
        raise ValueError(
            f"teacher.weights {teacher.weights} and teacher.endpoint {teacher.endpoint} are two "
            "teachers: leave one of them out"
        )
    if teacher.is_given and not loss.reads_reference:
        raise ValueError(
            f"teacher.weights {teacher.weights}{teacher.endpoint} is not read: set "
            "algo.loss.kl_weight and kl_estimator, or measure_kl, or leave it out"
        )
    if not (teacher.stays or teacher.weights):
        raise ValueError("teacher.stays False is of a teacher: set teacher.weights, or it to True")
    if teacher.endpoint:
        _check_endpoint(config)
    if loss.kind == "none":
        _check_alone(config)


def _check_endpoint(config: RunConfig) -> None:
    Endpoint.read(config.teacher.endpoint, "teacher.endpoint")
    sampling, agent = config.train_sampling, config.external_agent.command
    if sampling.temperature != 1.0 or sampling.cuts or agent:
        what = "requests of external_agent" if agent else "train_sampling"
        raise ValueError(
            "teacher.endpoint tells how probable tokens are at temperature 1 among all, and "
            f"{what} may be otherwise: give teacher.weights, or sample so"
        )


def _check_alone(config: RunConfig) -> None:
    if not (config.teacher.is_given or config.algo.loss.observation_weight):
        raise ValueError(
            "algo.loss.kind none, without a teacher, learns nothing but to stay where it begins: "
            "set teacher.weights, or choose a loss"
        )
    if (credit := config.attention_credit.credit) != "none":
        raise ValueError(
            f"attention_credit.credit {credit} changes advantages, which algo.loss.kind none does "
            "not learn from: set it to none"
        )
    if config.rl.dynamic_sampling:
        raise ValueError(
            "rl.dynamic_sampling leaves out groups whose outcomes are equal, of which "
            "algo.loss.kind none learns as much: set it to False"
        )


def check_teacher(config: RunConfig, tokenizer: str | Path) -> None:
    """Raises ValueError unless the tokens of `tokenizer`, the run's, are those of the teacher.

    tokenizer: a folder, a .gguf file or a model's name.
    """
    name = config.teacher.weights
    try:
        theirs = _vocabulary(name)
    except ValueError as error:
        raise ValueError(
            f"config.teacher.weights {name}, whose tokens have to be the run's: {error}"
        ) from error
    for token, number in _vocabulary(tokenizer).items():
        if theirs.get(token) != number:
            where = f"token {theirs[token]}" if token in theirs else "no token"
            raise ValueError(
                f"config.teacher.weights {name} has another tokenizer: {token!r:.40} is {where} "
                f"there, and token {number} in {tokenizer}: choose a teacher with the same one"
            )


def _vocabulary(source: str | Path) -> Mapping[str, int]:
    return read_folder(locate(source, weights=False)).get_vocab()
