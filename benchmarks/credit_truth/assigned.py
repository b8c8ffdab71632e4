"""The credit that algorithms assign to the chunks of the same trajectories."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np

from ale_jax.config.attention_credit import AttentionCreditHypers
from ale_jax.config.run import RunConfig
from ale_jax.configs.experiments import credit_truth
from ale_jax.data.replay import Group
from ale_jax.learn.attention_credit import make_attention_credit
from ale_jax.learn.critics import Critics, learn_values
from ale_jax.learn.learner import assemble
from ale_jax.learn.step import ModelSpec
from ale_jax.learn.token_credit import credit_by_critics, scale_advantages
from ale_jax.model.params import Params
from ale_jax.records import Batch
from ale_jax.system.checks import checked_config

LAMBDAS = {"gae": 1.0, "gae 0.95": 0.95}
# Member of a group -> the credit of each of its chunks.
Credits = dict[tuple[int, int], np.ndarray]


def assigned(
    groups: Sequence[Group], critic: Critics, model: ModelSpec, params: Params
) -> dict[str, Credits]:
    """Credit by algorithm: the mean over each chunk's tokens of the advantage, which is what the
    gradient is multiplied by at pi = pi_old and `negative_weight` 1."""
    found = {}
    for name in ("ipa", "grpo", "gigpo", "step"):
        config = _config(name)
        found[name] = by_chunk(assemble(groups, config.algo, config.learn).batches)
    grpo = _config("grpo")
    made = assemble(groups, grpo.algo, grpo.learn)
    hp = AttentionCreditHypers(credit="coupled")
    compute, chunks = model.compute, grpo.learn.chunks_per_pack
    amplify = make_attention_credit(model.shape, hp, chunks, model.mesh, compute)
    found["attention"] = by_chunk(amplify(params, made.batches, jax.random.key(0))[0])
    for name, lam in LAMBDAS.items():
        found[name] = by_chunk(_by_critic(groups, critic, lam)[0])
    return found


def train_critic(
    groups: Sequence[Group], model: ModelSpec, params: Params, passes: int, per_update: int
) -> Critics:
    """PPO's critic, as the preset has it, after `passes` over the groups in updates of `per_update`
    groups each."""
    config = _config("ppo")
    critic = Critics.make(config.critics, model, params, jax.random.key(1))
    draw = np.random.default_rng(0)
    for _ in range(passes):
        order = draw.permutation(len(groups))
        for first in range(0, len(order), per_update):
            chosen = [groups[i] for i in order[first : first + per_update]]
            batches = assemble(chosen, config.algo, config.learn).batches
            learn_values(batches, config.critics, config.algo, critic.update)
    return critic


def explained_variance(groups: Sequence[Group], critic: Critics) -> float:
    """Of the critic's values on the tokens of these trajectories."""
    return _by_critic(groups, critic, 1.0)[1]["critic_explained_variance"]


def _by_critic(
    groups: Sequence[Group], critic: Critics, lam: float
) -> tuple[list[Batch], Mapping[str, float]]:
    config = _config("ppo")
    made = assemble(groups, config.algo, config.learn)
    return credit_by_critics(
        made.batches,
        critic.values(made.batches),
        dataclasses.replace(critic.hp, lam=lam),
        config.algo,
        lambda b: scale_advantages(b, made.table.tag_G, config.algo.advantage),
    )


def _config(algorithm: str) -> RunConfig:
    values = credit_truth.get_config(algorithm)
    values.algo.loss.negative_weight = 1.0  # as in the papers
    return checked_config(values.to_dict())


def by_chunk(batches: Sequence[Batch]) -> Credits:
    """The mean of advantage_BT over the tokens of each sampled chunk."""
    return {
        place: np.array([x_t[chunk_t == k].mean() for k in np.unique(chunk_t)])
        for batch in batches
        for place, chunk_t, x_t in _members(batch)
    }


def _members(batch: Batch) -> Iterator[tuple[tuple[int, int], np.ndarray, np.ndarray]]:
    written_BT = batch.chunk_BT >= 0
    pairs = {
        (int(g), int(m))
        for g, m in zip(batch.group_BT[written_BT], batch.member_BT[written_BT], strict=True)
    }
    for group, member in sorted(pairs):
        own_BT = written_BT & (batch.group_BT == group) & (batch.member_BT == member)
        yield (group, member), batch.chunk_BT[own_BT], batch.advantage_BT[own_BT]
