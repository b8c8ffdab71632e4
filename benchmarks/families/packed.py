"""Two conversations of each family in one row, against transformers, which is given each alone."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import torch
from transformers import PreTrainedModel

from ale_jax.config.architecture import PolicyShape
from ale_jax.model.params import Params
from ale_jax.model.policy import hidden_states, logits
from benchmarks.families.tiny import VOCAB

TOKENS = 65  # more than a window of 8, and than the 64 that gated delta layers take at once
ALONE = ((TOKENS,), (TOKENS,))  # of two rows, the lengths of the conversations in each
PACKED = ((41, 24), (7, 58))


def distances(
    model: PreTrainedModel, params: Params, shape: PolicyShape, lengths: tuple[tuple[int, ...], ...]
) -> tuple[float, float]:
    """Returns how far the logits of all tokens, and the gradient at the embedding of their mean
    loss, are from transformers', as shares of the largest.

    lengths: of each row, those of its conversations, TOKENS together.
    """
    # The last id stands for an image, of which Gemma 4 embeds none where there is no image.
    tokens_BT = np.random.default_rng(0).integers(3, VOCAB - 1, (len(lengths), TOKENS), np.int32)
    position_BT = np.stack([np.concatenate([np.arange(n) for n in row]) for row in lengths])
    segment_BT = np.stack([np.repeat(np.arange(1, 1 + len(row)), row) for row in lengths])
    gradient, ours_BTV = _graded(params, tokens_BT, position_BT, segment_BT, shape)
    theirs_BTV, theirs_VD = _theirs(model, tokens_BT, lengths)
    return distance(ours_BTV, theirs_BTV), distance(gradient["embed_VD"], theirs_VD)


def distance(found: jax.Array, expected: np.ndarray) -> float:
    """Returns the largest difference, as a share of the largest number."""
    return float(np.abs(np.asarray(found) - expected).max() / np.abs(expected).max())


@partial(jax.jit, static_argnums=4)
def _graded(
    params: Params,
    tokens_BT: jax.Array,
    position_BT: jax.Array,
    segment_BT: jax.Array,
    shape: PolicyShape,
) -> tuple[Params, jax.Array]:
    is_next_BT = segment_BT[:, :-1] == segment_BT[:, 1:]

    def loss(params: Params) -> tuple[jax.Array, jax.Array]:
        hidden_BTD, _ = hidden_states(params, tokens_BT, position_BT, segment_BT, shape)
        logits_BTV = logits(params, hidden_BTD, shape.logit_cap)
        logp_BTV = jax.nn.log_softmax(logits_BTV[:, :-1])
        logp_BT = jnp.take_along_axis(logp_BTV, tokens_BT[:, 1:, None], axis=-1)[..., 0]
        return -jnp.where(is_next_BT, logp_BT, 0).sum() / is_next_BT.sum(), logits_BTV

    return jax.grad(loss, has_aux=True)(params)


def _theirs(
    model: PreTrainedModel, tokens_BT: np.ndarray, lengths: tuple[tuple[int, ...], ...]
) -> tuple[np.ndarray, np.ndarray]:
    tokens = torch.from_numpy(tokens_BT).long()
    rows = [row.split(list(each)) for row, each in zip(tokens, lengths, strict=True)]
    found = [[model(ids[None]).logits[0] for ids in row] for row in rows]
    losses = [
        torch.nn.functional.cross_entropy(logit_TV[:-1], ids[1:], reduction="sum")
        for row, of_row in zip(rows, found, strict=True)
        for ids, logit_TV in zip(row, of_row, strict=True)
    ]
    model.zero_grad()
    (sum(losses) / (tokens.numel() - len(losses))).backward()
    logits_BTV = torch.stack([torch.cat(of_row) for of_row in found])
    return logits_BTV.detach().numpy(), model.get_input_embeddings().weight.grad.numpy()
