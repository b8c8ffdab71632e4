"""A world of stages: what is played, and the exact probability of success.

An episode visits the stages of its task in order, one chunk of tokens for each. At a stage that
decides, one token of the chunk, at `place`, must be the task's word for this stage; all other
tokens are free. After a wrong word a silent world goes on and the episode is lost, which shows only
in its outcome. In a world with retries the stage stays as it is, and a turn is lost.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Size:
    """The sizes of arrays, for which a program is compiled. Every other number may change."""

    tasks: int = 4
    stages: int = 24
    turns: int = 24
    tokens: int = 4
    words: int = 4


class Regime(NamedTuple):
    """What a world and its training are like; arrays, for which nothing is compiled.

    stages, turns, tokens: of this world, at most those of `Size`. place: of the token that decides.
    decides_D: the stages that do. right_M: probability of the right word at the start, per task.
    age: versions between the weights that play and those that learn. uses: steps on one batch.
    epochs: updates of a step, whose pi_old is that of the first one. gap: deviation of the logits
    of the engine that plays from those of the learner. dropped: probability that a group with an
    episode that used all turns is not trained on, as it was too slow.
    """

    stages: jax.Array
    turns: jax.Array
    tokens: jax.Array
    place: jax.Array
    decides_D: jax.Array
    retries: jax.Array
    right_M: jax.Array
    age: jax.Array
    uses: jax.Array
    epochs: jax.Array
    gap: jax.Array
    dropped: jax.Array


def regime(
    size: Size,
    *,
    stages: int | None = None,
    turns: int | None = None,
    deciding: Sequence[int] | None = None,
    right: tuple[float, float] = (0.6, 0.4),
    retries: bool = False,
    **others: float,
) -> Regime:
    """deciding: the stages that decide; None: all. right: at the first and at the last task.
    others: tokens, place, age, uses, epochs, gap and dropped. ValueError if it does not fit in
    `size`."""
    stages, turns = stages or size.stages, turns or size.turns
    chosen = range(stages) if deciding is None else deciding
    tokens, place = int(others.get("tokens", size.tokens)), int(others.get("place", 0))
    age, uses, epochs = others.get("age", 0), others.get("uses", 1), others.get("epochs", 1)
    gap, dropped = others.get("gap", 0.0), others.get("dropped", 0.0)
    for name, value, least, most in (
        ("stages", stages, 1, size.stages),
        ("turns", turns, 1, size.turns),
        ("tokens", tokens, 1, size.tokens),
        ("place", place, 0, tokens - 1),
        ("deciding", max(chosen, default=0), 0, stages - 1),
        ("age", age, 0, math.inf),
        ("uses", uses, 1, math.inf),
        ("epochs", epochs, 1, math.inf),
        ("gap", gap, 0, math.inf),
        ("dropped", dropped, 0, 1),
    ):
        if not least <= value <= most:
            raise ValueError(f"{name} {value} must be in [{least}, {most}]")
    return Regime(
        jnp.int32(stages),
        jnp.int32(turns),
        jnp.int32(tokens),
        jnp.int32(place),
        jnp.isin(jnp.arange(size.stages), jnp.array(list(chosen))),
        jnp.bool_(retries),
        jnp.linspace(*right, size.tasks),
        jnp.int32(age),
        jnp.int32(uses),
        jnp.int32(epochs),
        jnp.float32(gap),
        jnp.float32(dropped),
    )


def right_words(key: jax.Array, size: Size) -> jax.Array:
    """The word that each task wants at each stage, int [M, D]."""
    return jax.random.randint(key, (size.tasks, size.stages), 0, size.words)


def prior(word_MD: jax.Array, world: Regime, size: Size) -> jax.Array:
    """Logits with which the right words have the probabilities `right_M`, and all other words and
    tokens are equally likely, [M, D, L, V]."""
    logit_M = jnp.log(world.right_M / (1.0 - world.right_M) * (size.words - 1))
    at_L = jax.nn.one_hot(world.place, size.tokens)
    wanted_MDV = jax.nn.one_hot(word_MD, size.words)
    return jnp.einsum("m,mdv,l->mdlv", logit_M, wanted_MDV, at_L)


class Played(NamedTuple):
    """Episodes. task_N, outcome_N (1: success), stage_NC, tokens_NCL; live_NC: whether the chunk
    was played; lost_NC: whether a wrong word was written before it in a silent world; right_NC:
    whether the chunk did not fail; logits_MDLV: of the engine that played."""

    task_N: jax.Array
    outcome_N: jax.Array
    stage_NC: jax.Array
    tokens_NCL: jax.Array
    live_NC: jax.Array
    lost_NC: jax.Array
    right_NC: jax.Array
    logits_MDLV: jax.Array

    def of_tokens(self, table_MDLV: jax.Array) -> jax.Array:
        """The entry of each token that was written, [N, C, L]."""
        table_NCLV = table_MDLV[self.task_N[:, None], self.stage_NC]
        return jnp.take_along_axis(table_NCLV, self.tokens_NCL[..., None], -1)[..., 0]

    def of_states(self, table_MDLV: jax.Array) -> jax.Array:
        """The sum over the words in the state of each token, [N, C, L]."""
        return table_MDLV.sum(-1)[self.task_N[:, None], self.stage_NC]


def play(key, logits_MDLV, word_MD, world: Regime, task_N, size: Size) -> Played:
    """One episode for each entry of task_N, by an engine whose logits are off by `world.gap`."""
    gap_key, token_key = jax.random.split(key)
    off_MDLV = jax.random.normal(gap_key, logits_MDLV.shape)
    logits_MDLV = logits_MDLV + world.gap * off_MDLV
    below_MDLV = jnp.cumsum(jax.nn.softmax(logits_MDLV), axis=-1)
    drawn_CNL = jax.random.uniform(token_key, (size.turns, len(task_N), size.tokens))

    def turn(state, now):
        stage_N, lost_N = state
        drawn_NL, number = now
        live_N = (stage_N < world.stages) & (number < world.turns)
        at_N = jnp.minimum(stage_N, world.stages - 1)
        # The last sum may be rounded to below 1, so it is not compared.
        above_NLV = drawn_NL[..., None] > below_MDLV[task_N, at_N][..., :-1]
        token_NL = above_NLV.sum(-1)
        wrote_N = jnp.take(token_NL, world.place, axis=1)
        right_N = (wrote_N == word_MD[task_N, at_N]) | ~world.decides_D[at_N]
        moves_N = jnp.where(world.retries, right_N, True)
        fails_N = ~right_N & ~world.retries
        after = jnp.where(live_N, at_N + moves_N, stage_N), lost_N | (live_N & fails_N)
        return after, (at_N, token_NL, live_N, lost_N, right_N)

    begin = jnp.zeros(len(task_N), jnp.int32), jnp.zeros(len(task_N), bool)
    along = drawn_CNL, jnp.arange(size.turns)
    (stage_N, lost_N), found = jax.lax.scan(turn, begin, along)
    stage_NC, tokens_NCL, live_NC, lost_NC, right_NC = (jnp.moveaxis(x, 0, 1) for x in found)
    outcome_N = ((stage_N >= world.stages) & ~lost_N).astype(jnp.float32)
    return Played(task_N, outcome_N, stage_NC, tokens_NCL, live_NC, lost_NC, right_NC, logits_MDLV)


def without_slow(key: jax.Array, played: Played, members: int, world: Regime) -> Played:
    """Returns the episodes of which those of dropped groups have no chunks. `members` episodes in a
    row are a group."""
    slow_N = played.live_NC.sum(1) == world.turns
    slow_G = slow_N.reshape(-1, members).any(1)
    dropped_G = slow_G & jax.random.bernoulli(key, world.dropped, slow_G.shape)
    kept_N = ~jnp.repeat(dropped_G, members)
    return played._replace(live_NC=played.live_NC & kept_N[:, None])


def success(logits_MDLV: jax.Array, word_MD: jax.Array, world: Regime, size: Size) -> jax.Array:
    """The probability of success, averaged over the tasks; exact, so evaluations have no noise."""
    words_MDV = jnp.take(jax.nn.softmax(logits_MDLV), world.place, axis=2)
    right_MD = jnp.take_along_axis(words_MDV, word_MD[..., None], -1)[..., 0]
    right_MD = jnp.where(world.decides_D[None], right_MD, 1.0)

    def turn(at_MD1, number):
        moves_MD = at_MD1[:, :-1] * right_MD * (number < world.turns)
        moves_MD *= (jnp.arange(size.stages) < world.stages)[None]
        return at_MD1.at[:, :-1].add(-moves_MD).at[:, 1:].add(moves_MD), None

    begin_MD1 = jnp.zeros((size.tasks, size.stages + 1)).at[:, 0].set(1.0)
    at_MD1, _ = jax.lax.scan(turn, begin_MD1, jnp.arange(size.turns))
    arrived_M = jnp.take(at_MD1, world.stages, axis=1)
    return jnp.where(world.retries, arrived_M, right_MD.prod(-1)).mean()
