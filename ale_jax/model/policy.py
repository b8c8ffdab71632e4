"""The forward pass over packed rows: hidden states, log-probabilities and entropy of a policy, and
the values of a critic."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from ale_jax.config.architecture import (
    Attention,
    GatedDelta,
    Latent,
    Layer,
    PolicyShape,
    ShortConv,
)
from ale_jax.config.model import FLOAT32, Compute
from ale_jax.model.attention import SequencePermutation, packed_attention
from ale_jax.model.blockwise_attention import Places
from ale_jax.model.compute import cast_layer, product, recomputed, scaled, soft_capped
from ale_jax.model.delta_layer import packed_delta
from ale_jax.model.guides import SamplingMasks, restricted
from ale_jax.model.latent import expanded_qkv
from ale_jax.model.layers import (
    apply_in_turn,
    feed_forward,
    final_hidden,
    project_out,
    project_qkv,
    residual_blocks,
)
from ale_jax.model.lora import adapted_layers
from ale_jax.model.moe import RouterStats, on_one_device, routing
from ale_jax.model.params import Param, Params, param_table
from ale_jax.model.reading import before, following, put_behind, read_here
from ale_jax.model.rounded import ROUNDED, head_alone, in_type, rows_instead
from ale_jax.model.sharding import row_axes, sequence_axis, spec
from ale_jax.model.short_conv import packed_conv

SCORE_BLOCK = 1024  # tokens per device whose logits are held at once


def hidden_states(
    params: Params,
    tokens_BT: jax.Array,
    position_BT: jax.Array,
    segment_BT: jax.Array,
    shape: PolicyShape,
    compute: Compute = FLOAT32,
    replay_BTLK: jax.Array | None = None,
    read_BR: jax.Array | None = None,
) -> tuple[jax.Array, list[RouterStats]]:
    """Computes the final hidden states [B,T,D] (after the final norm), and each layer's router
    statistics.

    A token attends to itself and the earlier tokens of its own segment; segment 0 is padding.
    replay_BTLK: experts to use in each layer that has experts (L layers, in order), as in
    `moe.route`. read_BR: of `reading.read_here`; then the states are those before these tokens,
    [B,R,D].
    """

    permutation = SequencePermutation.on_mesh(tokens_BT.shape[1])
    tokens_BT, position_BT, segment_BT = map(permutation.deal, (tokens_BT, position_BT, segment_BT))
    places = Places(segment_BT, position_BT)
    replays = replay_by_layer(permutation, replay_BTLK, shape)

    def apply_layer(kind, x_BTD, layer):
        weights, *inputs = layer
        weights = cast_layer(weights, compute.compute_dtype)
        return decoder_layer(weights, x_BTD, places, kind, *inputs)

    def for_scan(layer):
        weights, *inputs = layer
        return cast_layer(weights, compute.compute_dtype), *inputs

    # What comes before the last layer's feed-forward is read by the keys and values of all tokens.
    read = ([None] * shape.num_layers + [read_BR])[1:]
    layers = list(zip(adapted_layers(params), replays, read, strict=True))
    x_BTD = embed_tokens(params, tokens_BT, shape, compute)
    apply = recomputed(apply_layer, compute.remat)
    x_BTD, stats = apply_in_turn(apply, x_BTD, shape.layers, layers, for_scan)
    every_stats = [
        permutation.collect_stats(each, len(tokens_BT)) for each in stats if each is not None
    ]
    hidden_BTD = final_hidden(params, x_BTD, shape)
    return (permutation.collect(hidden_BTD) if read_BR is None else hidden_BTD), every_stats


def embed_tokens(
    params: Params, tokens_BT: jax.Array, shape: PolicyShape, compute: Compute
) -> jax.Array:
    """Returns the input of the first layer, [B,T,D]."""
    # The cast follows the lookup, so that the gradients of a token's row are summed in float32.
    x_BTD = _look_up(params, tokens_BT).astype(compute.compute_dtype)
    return scaled(x_BTD, shape.embed_scale)


def decoder_layer(
    layer: Params,
    x_BTD: jax.Array,
    places: Places,
    kind: Layer,
    replay_BTK: jax.Array | None = None,
    read_BR: jax.Array | None = None,
) -> tuple[jax.Array, RouterStats | None]:
    """Applies one layer, with weights that are cast, to the residual stream. Also returns its
    router's statistics. Tokens are in the order that `packed_attention` expects. read_BR: the
    result is the stream before these tokens alone, [B,R,D]; the statistics are of all tokens."""

    def mix(h_BTD):
        return packed_mixer(layer, h_BTD, places, kind), None

    def feed(h_BTD):
        if read_BR is None:
            return feed_forward(layer, h_BTD, kind, replay_BTK)
        return _fed_before(read_BR, layer, h_BTD, kind, replay_BTK)

    def kept(x_BTD):
        return x_BTD if read_BR is None else before(x_BTD, read_BR)

    x_BTD, _, stats = residual_blocks(layer, x_BTD, kind, mix, feed, kept)
    return _cut_as_rows(x_BTD), stats


def _fed_before(
    read_BR: jax.Array,
    layer: Params,
    h_BTD: jax.Array,
    kind: Layer,
    replay_BTK: jax.Array | None,
) -> tuple[jax.Array, RouterStats | None]:
    """Computes the feed-forward before the tokens that are read, [B,R,D]. The router's statistics
    are of all tokens, on which it is balanced."""
    if kind.experts and not on_one_device():
        # On a mesh, what routes tokens also sends them to their experts.
        y_BTD, stats = feed_forward(layer, h_BTD, kind, replay_BTK)
        return before(y_BTD, read_BR), stats
    replay_BRK = None if replay_BTK is None else before(replay_BTK, read_BR)
    y_BRD, _ = feed_forward(layer, before(h_BTD, read_BR), kind, replay_BRK)
    return y_BRD, routing(layer, h_BTD, kind.experts, replay_BTK) if kind.experts else None


def packed_mixer(layer: Params, h_BTD: jax.Array, places: Places, kind: Layer) -> jax.Array:
    """Returns what a layer's mixer makes of packed rows, [B,T,D]."""
    if isinstance(kind.mixer, GatedDelta):
        return packed_delta(layer, h_BTD, places.segment_BT, kind.mixer, kind.norm.eps)
    if isinstance(kind.mixer, ShortConv):
        return packed_conv(layer, h_BTD, places.segment_BT, kind.mixer)
    q, k, v, attention = heads_of(layer, h_BTD, places.position_BT, kind)
    out_BTNH = packed_attention(q, k, v, places, attention, layer.get("sink_N"))
    return project_out(layer, out_BTNH, h_BTD, kind.mixer)


def heads_of(
    layer: Params, h_BTD: jax.Array, position_BT: jax.Array, kind: Layer
) -> tuple[jax.Array, jax.Array, jax.Array, Attention]:
    """Returns queries, keys and values of a block's input, and how they attend."""
    if isinstance(kind.mixer, Latent):
        return *expanded_qkv(layer, h_BTD, position_BT, kind.mixer), kind.mixer.expanded
    assert isinstance(kind.mixer, Attention)
    return *project_qkv(layer, h_BTD, position_BT, kind), kind.mixer


def replay_by_layer(
    permutation: SequencePermutation, replay_BTLK: jax.Array | None, shape: PolicyShape
) -> list[jax.Array | None]:
    """Returns the experts that each layer has to use [B,T,K], permuted as its tokens are; None for
    a layer without experts."""
    if replay_BTLK is None:
        return [None] * shape.num_layers
    replays = iter(jnp.moveaxis(permutation.deal(replay_BTLK.astype(jnp.int32)), 2, 0))
    return [next(replays) if kind.experts else None for kind in shape.layers]


def _look_up(params: Params, tokens_BT: jax.Array) -> jax.Array:
    """Each token's row [B,T,D]. On a mesh, the width of the table is gathered, instead of the
    tokens."""
    tables = [params["embed_VD"]]
    if ROUNDED in params:
        tables.append(params[ROUNDED]["embed_VD"])
    if not jax.sharding.get_abstract_mesh().empty:
        tables = jax.lax.with_sharding_constraint(tables, spec(("vocab", None)))
    own_VD, *rounded_VD = tables
    x_BTD = rows_instead(own_VD, *rounded_VD, tokens_BT) if rounded_VD else own_VD[tokens_BT]
    return _cut_as_rows(x_BTD)


def _cut_as_rows(x_BTD: jax.Array) -> jax.Array:
    """The same array, on a mesh sharded by rows and tokens, and whole in D."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return x_BTD
    B, T, _ = x_BTD.shape
    own = PartitionSpec(row_axes(B, mesh), sequence_axis(T, mesh))
    return jax.lax.with_sharding_constraint(x_BTD, own)


class TokenScores(NamedTuple):
    """Scores of each token given those before it in its segment (0 at position 0): natural log,
    float32.

    logp_BT: log-probability. entropy_BT: entropy of the distribution that it was drawn from.
    best_BT: whether no token was more probable. top_id_BTk, logp_top_BTk: of k tokens in its place;
    None if they were not asked for.
    """

    logp_BT: jax.Array
    entropy_BT: jax.Array
    best_BT: jax.Array
    top_id_BTk: jax.Array | None = None
    logp_top_BTk: jax.Array | None = None


def logits(params: Params, hidden_BTD: jax.Array, cap: float = 0.0) -> jax.Array:
    """Computes the unnormalised log-probabilities over the vocabulary, float32 [B,T,V]. cap: the
    shape's `logit_cap`."""
    name = _head_name(params)
    # Cast here, and not once for all blocks, so that their gradients are summed in the weights' own
    # type.
    head = in_type(params, name, hidden_BTD.dtype)
    head_DV = head if name == "head_DV" else head.T
    return soft_capped(product(hidden_BTD, head_DV, jnp.float32), cap)


def _head_name(params: Params) -> str:
    return "head_DV" if "head_DV" in params else "embed_VD"


class Asked(NamedTuple):
    """How tokens were drawn, and what is asked of the distributions that they were drawn from.

    temperature_BT: None: 1. top: the log-probabilities of as many of the most probable tokens, or,
    if they are given, of the tokens top_id_BTk.
    """

    masks: SamplingMasks | None = None
    temperature_BT: jax.Array | None = None
    top_id_BTk: jax.Array | None = None
    top: int = 0


def score_tokens(
    params: Params,
    tokens_BT: jax.Array,
    hidden_BTD: jax.Array,
    position_BT: jax.Array,
    asked: Asked = Asked(),  # noqa: B008 (it has no state)
    cap: float = 0.0,
    read_BR: jax.Array | None = None,
) -> TokenScores:
    """Scores every token under the hidden state just before it, in the distribution that it was
    drawn from: at its temperature, among the tokens that could be drawn in its place.
    cap: the shape's `logit_cap`. read_BR: only these tokens are scored, and the hidden states are
    those before them, [B,R,D]; the scores of others are 0.

    A scan over blocks of SCORE_BLOCK tokens: the logits of one block are in memory at a time, and
    are recomputed in the backward pass if there are several. If the vocabulary is sharded, only
    sums and maxima are exchanged.
    """
    name = _head_name(params)
    score = partial(_score_rows, top=asked.top, cap=cap)
    mesh = jax.sharding.get_abstract_mesh()
    rows = () if mesh.empty else row_axes(len(tokens_BT), mesh)
    if rows:
        # Each device sums its own gradient of the head. The sums are then reduced once, and not in
        # each block.
        score = jax.shard_map(
            score,
            axis_names=set(rows),
            in_specs=(PartitionSpec(), *[PartitionSpec(rows)] * 7),
            out_specs=PartitionSpec(rows),
            check_vma=False,
        )
    head = head_alone(params, name)
    return score(head, tokens_BT, hidden_BTD, position_BT, read_BR, *asked[:3])


def _score_rows(
    head: Params,
    tokens_BT: jax.Array,
    hidden_BTD: jax.Array,
    position_BT: jax.Array,
    read_BR: jax.Array | None,
    masks: SamplingMasks | None,
    temperature_BT: jax.Array | None,
    top_id_BTk: jax.Array | None,
    *,
    top: int,
    cap: float,
) -> TokenScores:
    def score_block(_, block):
        hidden_BtD, target_Bt, mask_id_Bt, factor_Bt, top_id_Btk = block
        logits_BtV = logits(head, hidden_BtD, cap)
        if factor_Bt is not None:
            logits_BtV *= factor_Bt[..., None]
        if masks is not None:
            logits_BtV = restricted(logits_BtV, target_Bt, mask_id_Bt, masks.mask_BIw)
        total_Bt = jax.nn.logsumexp(logits_BtV, axis=-1)
        is_target_BtV = jnp.arange(logits_BtV.shape[-1])[None, None] == target_Bt[..., None]
        target_logit_Bt = jnp.where(is_target_BtV, logits_BtV, 0.0).sum(axis=-1)
        log_prob_BtV = logits_BtV - total_Bt[..., None]
        entropy_Bt = -(jnp.exp(log_prob_BtV) * log_prob_BtV).sum(axis=-1)
        best_Bt = target_logit_Bt >= logits_BtV.max(axis=-1)
        logp_top_Btk = None
        if top_id_Btk is not None:
            logp_top_Btk = jnp.take_along_axis(log_prob_BtV, top_id_Btk, axis=-1)
        elif top:
            most = min(top, log_prob_BtV.shape[-1])
            logp_top_Btk, top_id_Btk = jax.lax.top_k(log_prob_BtV, most)
        logp_Bt = target_logit_Bt - total_Bt
        return None, TokenScores(logp_Bt, entropy_Bt, best_Bt, top_id_Btk, logp_top_Btk)

    B, T = tokens_BT.shape
    R = hidden_BTD.shape[1]
    blocks = -(-B * R // SCORE_BLOCK)
    if blocks > 1:  # a single one would be computed again right after it was computed
        score_block = jax.checkpoint(score_block)
    mask_id_BT = None if masks is None else masks.mask_id_BT
    # Factors and not divisors, as the last block is padded with zeros.
    factor_BT = None if temperature_BT is None else 1.0 / temperature_BT
    asked = tokens_BT, mask_id_BT, factor_BT, top_id_BTk
    of_next = jax.tree.map(lambda x_BT: following(x_BT, read_BR), asked)
    inputs = jax.tree.map(lambda x_BT: _in_blocks(x_BT, blocks), (hidden_BTD, *of_next))
    _, scores = jax.lax.scan(score_block, None, inputs)

    def align(x_ZBt):
        rest = x_ZBt.shape[3:]
        x_BR = jnp.moveaxis(x_ZBt, 0, 2).reshape(B, -1, *rest)[:, :R]
        follows_BT = (position_BT > 0).reshape(B, T, *[1] * len(rest))
        return jnp.where(follows_BT, put_behind(x_BR, read_BR, T), 0)

    return jax.tree.map(align, scores)


def _in_blocks(x_BT: jax.Array, blocks: int) -> jax.Array:
    """[B,T,...] -> [Z,B,t,...]: a block has every Z-th token of each row, so that all devices work
    on each block if the tokens of rows are sharded."""
    B, T, *rest = x_BT.shape
    padding = [(0, 0), (0, -T % blocks)] + [(0, 0)] * len(rest)
    x_BtZ = jnp.pad(x_BT, padding).reshape(B, -1, blocks, *rest)
    return jnp.moveaxis(x_BtZ, 2, 0)


HEAD = "value_D"


def value_table(shape: PolicyShape) -> Params:
    """Returns the weights of a critic, in the form in which `param_table` describes a policy's."""
    table = param_table(dataclasses.replace(shape, tie_embeddings=True))  # no head for tokens
    # Zeros: an untrained critic predicts 0 for every state, and not noise that GAE would pass on.
    return table | {HEAD: Param((shape.width,), ("norm",), jax.nn.initializers.zeros)}


def token_values(
    params: Params,
    tokens_BT: jax.Array,
    position_BT: jax.Array,
    segment_BT: jax.Array,
    shape: PolicyShape,
    compute: Compute = FLOAT32,
    read_BR: jax.Array | None = None,
) -> tuple[jax.Array, list[RouterStats]]:
    """Computes V(s_t) of what precedes each token in its segment, float32 [B,T], and the routers'
    statistics. 0 on a segment's first token, which nothing precedes, and on tokens that are not in
    read_BR."""
    read_BR = read_here(read_BR)
    hidden_BTD, stats = hidden_states(
        params, tokens_BT, position_BT, segment_BT, shape, compute, read_BR=read_BR
    )
    # In float32, and not as a matrix product, so that nothing is rounded to a lower precision.
    value_BT = (hidden_BTD.astype(jnp.float32) * params[HEAD][None, None]).sum(axis=-1)
    value_BT = put_behind(value_BT, read_BR, tokens_BT.shape[1])
    return jnp.where(position_BT > 0, value_BT, 0.0), stats
