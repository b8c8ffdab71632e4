"""Tiny random models of every family, as transformers makes them, against what is computed here."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from ale_jax.config.architecture import PolicyShape
from ale_jax.model.families.wrappers import text_tensors
from ale_jax.model.params import Params, count_params
from ale_jax.model.policy import hidden_states, logits
from ale_jax.model.weights.export import export
from ale_jax.model.weights.load import load_params, open_checkpoint
from benchmarks.families.tiny import OF_FAMILY, VOCAB, make_model, their_logits
from benchmarks.families.tiny_wrapped import OF_WRAPPER

TOKENS = 65
QUICK_FAMILIES = 3
BAR = 1e-5  # of the largest number


def measure(quick: bool) -> dict[str, Any]:
    """Prints a row for each family: how far logits and the embedding's gradient are from
    transformers', as a share of the largest, and whether transformers reads the export. Returns
    how many families are equal."""
    families = [*OF_FAMILY, *OF_WRAPPER][: QUICK_FAMILIES if quick else None]
    print(f"{'family':<14}{'weights':>9}{'logits':>10}{'gradient':>10}  export")
    equal = [name for name in families if _row(name)]
    return {"families_equal": len(equal), "families_tried": len(families)}


def _row(family: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(family)
        model.save_pretrained(folder)
        checkpoint = open_checkpoint(folder)
        shape, params = checkpoint.shape, load_params(checkpoint)
        exported = _is_exported(model, params, shape, Path(folder) / "out")
    of_logits, of_gradient = _distances(model, params, shape)
    print(
        f"{family:<14}{count_params(shape)[0]:>9}{of_logits:>10.1e}{of_gradient:>10.1e}  "
        f"{'equal' if exported else 'differs'}",
        flush=True,
    )
    return exported and max(of_logits, of_gradient) <= BAR


def _distances(model: PreTrainedModel, params: Params, shape: PolicyShape) -> tuple[float, float]:
    tokens_BT = np.random.default_rng(0).integers(3, VOCAB, (2, TOKENS)).astype(np.int32)
    gradient, ours_BTV = _graded(params, tokens_BT, shape)
    tokens = torch.from_numpy(tokens_BT).long()
    theirs = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(theirs[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    model.zero_grad()
    loss.backward()
    embedding = model.get_input_embeddings().weight.grad.numpy()
    return (
        distance(ours_BTV, their_logits(model, tokens_BT)),
        distance(gradient["embed_VD"], embedding),
    )


@partial(jax.jit, static_argnums=2)
def _graded(params: Params, tokens_BT: jax.Array, shape: PolicyShape) -> tuple[Params, jax.Array]:
    def loss(params: Params) -> tuple[jax.Array, jax.Array]:
        logits_BTV = forward(params, tokens_BT, shape)
        logp_BTV = jax.nn.log_softmax(logits_BTV[:, :-1])
        return -jnp.take_along_axis(logp_BTV, tokens_BT[:, 1:, None], axis=-1).mean(), logits_BTV

    return jax.grad(loss, has_aux=True)(params)


def forward(params: Params, tokens_BT: jax.Array, shape: PolicyShape) -> jax.Array:
    """Returns the logits of rows of one conversation each, [B,T,V]."""
    position_BT = jnp.broadcast_to(jnp.arange(tokens_BT.shape[1]), tokens_BT.shape)
    ones_BT = jnp.ones_like(tokens_BT)
    hidden_BTD, _ = hidden_states(params, tokens_BT, position_BT, ones_BT, shape)
    return logits(params, hidden_BTD, shape.logit_cap)


def distance(found: jax.Array, expected: np.ndarray) -> float:
    """Returns the largest difference, as a share of the largest number."""
    return float(np.abs(np.asarray(found) - expected).max() / np.abs(expected).max())


def _is_exported(model: PreTrainedModel, params: Params, shape: PolicyShape, out: Path) -> bool:
    export(out, params, shape)
    back = AutoModelForCausalLM.from_pretrained(out).state_dict()
    theirs = model.state_dict()
    if model.config.model_type in OF_WRAPPER:
        theirs = text_tensors(theirs)
    return back.keys() == theirs.keys() and all(torch.equal(back[n], theirs[n]) for n in theirs)
