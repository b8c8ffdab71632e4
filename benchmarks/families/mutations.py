"""Damaged and odd configurations of every family: each is refused, or computed as transformers
computes it."""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ale_jax.model.weights.load import load_params, open_checkpoint
from benchmarks.families.packed import distance
from benchmarks.families.parity import forward
from benchmarks.families.tiny import OF_FAMILY, VOCAB, class_of, make_model, their_logits
from benchmarks.families.tiny_wrapped import OF_WRAPPER

TRIED, QUICK_TRIED, SEED = 1000, 20, 0
CLOSE = 2e-5
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}
ODD = (
    *(None, True, False, -1, 0, 1, 2, 4, 8, 16, 0.5, 3.0, "gelu", "relu", {}, []),
    *(["full_attention"] * 2, ["sliding_attention"] * 2, "sliding_attention"),
    {"rope_theta": 1e4} | YARN,
    {"rope_theta": 1e4, "rope_type": "dynamic", "factor": 2.0},
    {"rope_theta": 500.0, "rope_type": "linear", "factor": 2.0},
)
# Fields that some family has, and others not.
SOMEBODYS = (
    "attention_bias mlp_bias sliding_window layer_types rope_theta rope_scaling head_dim "
    "hidden_act partial_rotary_factor use_sliding_window final_logit_softcapping "
    "attn_logit_softcapping qk_layernorm use_qk_norm residual_multiplier embedding_multiplier "
    "logits_scaling logit_scale tie_word_embeddings num_key_value_heads norm_topk_prob "
    "query_pre_attn_scalar clip_qkv n_group rms_norm_eps layer_norm_eps no_rope_layers "
    "attention_chunk_size routed_scaling_factor topk_group first_k_dense_replace "
    "rope_parameters max_position_embeddings"
)
_forward = jax.jit(forward, static_argnums=2)


def measure(quick: bool) -> dict[str, Any]:
    """Tries as many as TRIED, and returns how many were what. Silent: neither refused nor equal."""
    draw, found, saved = random.Random(SEED), Counter(), {}
    families = [*OF_FAMILY, *OF_WRAPPER]
    with tempfile.TemporaryDirectory() as folder:
        while sum(found.values()) < (QUICK_TRIED if quick else TRIED):
            family = draw.choice(families)
            if family not in saved:
                saved[family] = _save(family, Path(folder) / family)
            path, config = saved[family]
            changed, what = mutate(draw, config)
            if changed != config:
                (path / "config.json").write_text(json.dumps(changed))
                outcome = judge(path)
                found[outcome] += 1
                if outcome in ("silent", "crashed"):
                    print(f"{family}: {what}: {outcome}", flush=True)
    print(dict(found))
    total = sum(found.values())
    return {"mutations_tried": total, "mutations_silent": found["silent"] + found["crashed"]}


def _save(family: str, path: Path) -> tuple[Path, dict[str, Any]]:
    make_model(family).save_pretrained(path)
    return path, json.loads((path / "config.json").read_text())


def mutate(draw: random.Random, config: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Returns the configuration without a field, or with another value of one that it has, or an
    odd one of any family's; and what was done."""
    changed = json.loads(json.dumps(config))
    if "text_config" in config and draw.random() < 0.7:
        changed["text_config"], what = mutate(draw, config["text_config"])
        return changed, f"text_config: {what}"
    own = [name for name in config if name != "model_type"]
    inner = list(config.get("rope_parameters") or ())
    kind = draw.random()
    if kind < 0.3:
        name = draw.choice(own)
        del changed[name]
        return changed, f"without {name}"
    if kind < 0.4 and inner:
        name = draw.choice(inner)
        del changed["rope_parameters"][name]
        return changed, f"without rope_parameters.{name}"
    if kind < 0.7:
        name = draw.choice(own)
        value = _another(draw, config[name])
    else:
        name, value = draw.choice(SOMEBODYS.split()), draw.choice(ODD)
    return changed | {name: value}, f"{name} {value}"


def _another(draw: random.Random, value: Any) -> Any:
    """A value that the field might have as well."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float) and value:
        return draw.choice((value * 2, value / 2, value + 1))
    return draw.choice(ODD)


def judge(path: Path) -> str:
    """Returns what became of a checkpoint: refused, equal, silent, crashed, or theirs (transformers
    itself does not load it)."""
    try:
        checkpoint = open_checkpoint(path)
    except ValueError:
        return "refused"
    except Exception:  # of whatever kind, it is a fault
        return "crashed"
    tokens_BT = np.random.default_rng(0).integers(3, VOCAB, (1, 24)).astype(np.int32)
    try:
        family = json.loads((path / "config.json").read_text())["model_type"]
        model = class_of(family).from_pretrained(path, attn_implementation="eager")
        theirs = their_logits(model, tokens_BT)
    except Exception:  # transformers raises many kinds
        return "theirs"
    ours = _forward(load_params(checkpoint), tokens_BT, checkpoint.shape)
    return "equal" if distance(ours, theirs) <= CLOSE else "silent"
