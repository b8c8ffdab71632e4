"""Tiny random models of every family, as transformers makes them, against what is computed here."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from ale_jax.config.architecture import PolicyShape
from ale_jax.model.families.wrappers import text_tensors
from ale_jax.model.params import Params, count_params
from ale_jax.model.policy import hidden_states, logits
from ale_jax.model.weights.export import export
from ale_jax.model.weights.load import load_params, open_checkpoint
from benchmarks.families.disturbed import as_alone, swapped_distance
from benchmarks.families.packed import ALONE, PACKED, distances
from benchmarks.families.tiny import OF_FAMILY, make_model
from benchmarks.families.tiny_wrapped import OF_WRAPPER

QUICK_FAMILIES = 3
BAR = 1e-5  # of the largest number
LOGIT_BAR = 2e-4  # of logits up to about 10
COLUMNS = ("logits", "gradient", "packed", "swapped", "shared", "preempted", "export")


def measure(quick: bool) -> dict[str, Any]:
    """Prints a row for each family. Returns how many are equal in all columns, and which of the
    others differ in what.

    logits, gradient: how far those of rows of one conversation are from transformers', as a share
    of the largest. packed: the larger of both where two conversations are in a row. swapped: as
    `swapped_distance`. shared, preempted: whether the engine's tokens are those that conversations
    get alone, to the last bit. export: whether transformers reads the same weights from it.
    """
    families = [*OF_FAMILY, *OF_WRAPPER][: QUICK_FAMILIES if quick else None]
    print(f"{'family':<17}{'weights':>8}" + "".join(f"{name:>10}" for name in COLUMNS))
    unlike = {family: names for family in families if (names := _row(family))}
    return {
        "families_equal": len(families) - len(unlike),
        "families_tried": len(families),
        "families_unlike": unlike,
    }


def _row(family: str) -> list[str]:
    """Prints a row; returns the columns that are above their bar, or differ."""
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(family)
        model.save_pretrained(folder)
        checkpoint = open_checkpoint(folder)
        shape, params = checkpoint.shape, load_params(checkpoint)
        exported = _is_exported(model, params, shape, Path(folder) / "out")
    found = (
        *distances(model, params, shape, ALONE),
        max(distances(model, params, shape, PACKED)),
        swapped_distance(model, params, shape),
        *as_alone(params, shape),
        exported,
    )
    jax.clear_caches()  # the programs of sixty families take gigabytes
    row = "".join(f"{_told(value):>10}" for value in found)
    print(f"{family:<17}{count_params(shape)[0]:>8}{row}", flush=True)
    bars = {"swapped": LOGIT_BAR}
    return [
        name
        for name, value in zip(COLUMNS, found, strict=True)
        if not (value if isinstance(value, bool) else value <= bars.get(name, BAR))
    ]


def _told(value: float | bool) -> str:
    if isinstance(value, bool):
        return "equal" if value else "differs"
    return f"{value:.1e}"


def forward(params: Params, tokens_BT: jax.Array, shape: PolicyShape) -> jax.Array:
    """Returns the logits of rows of one conversation each, [B,T,V]."""
    position_BT = jnp.broadcast_to(jnp.arange(tokens_BT.shape[1]), tokens_BT.shape)
    ones_BT = jnp.ones_like(tokens_BT)
    hidden_BTD, _ = hidden_states(params, tokens_BT, position_BT, ones_BT, shape)
    return logits(params, hidden_BTD, shape.logit_cap)


def _is_exported(model: PreTrainedModel, params: Params, shape: PolicyShape, out: Path) -> bool:
    export(out, params, shape)
    back = AutoModelForCausalLM.from_pretrained(out).state_dict()
    theirs = model.state_dict()
    if model.config.model_type in OF_WRAPPER:
        theirs = text_tensors(theirs)
    return back.keys() == theirs.keys() and all(torch.equal(back[n], theirs[n]) for n in theirs)
