"""Writes adapters in PEFT's format: a folder with adapter_config.json and
adapter_model.safetensors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.model import LoraShape
from ale_jax.files import new_folder, write_json
from ale_jax.model.params import Params
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.model.weights.hub import is_name, split
from ale_jax.model.weights.peft_modules import (
    CONFIG_FILE,
    EXPERTS,
    TENSORS_FILE,
    Factors,
    Module,
    divisor,
    key_of,
    modules_of,
)


def save_peft(
    path: Path,
    params: Params,
    shape: PolicyShape,
    lora: LoraShape,
    base_model: str,
    tokenizer: ChatTokenizer | None = None,
) -> None:
    """Writes the adapters of `params`, with the tokenizer, to a new folder, which appears complete
    or not at all. base_model: path of the base weights, or name@revision, as hub.locate takes them
    (not a .gguf file).

    Raises:
      ValueError: the folder exists; there are no adapters; or PEFT would take some for others.
    """
    if path.exists():
        raise ValueError(f"{path} exists: name a folder that does not")
    if "adapters" not in params:
        raise ValueError("there are no adapters to export: these weights were trained in full")
    modules = modules_of(shape)
    adapted = [m for m in modules if any(p.name in params["adapters"][m.layer] for p in m.parts)]
    _refuse_mistaken(adapted, modules)
    factors = {module: module.factors(params["adapters"][module.layer]) for module in adapted}
    nested = {m.layer for m in adapted if m.suffix.endswith(f"experts.{EXPERTS['down']}")}
    tensors = {}
    for module, (a, b) in factors.items():
        key = key_of(module, nested)
        tensors[f"{key}.lora_A.weight"], tensors[f"{key}.lora_B.weight"] = _flat(module, a, b)
    ranks = {m.suffix: a.shape[-2] for m, (a, _) in factors.items() if a.shape[-2] != lora.rank}
    name, revision = split(base_model) if is_name(base_model) else (base_model, None)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": name,
        "revision": revision,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "use_rslora": lora.rslora,
        "rank_pattern": ranks,
        "alpha_pattern": {each: lora.scale * divisor(ranks[each], lora.rslora) for each in ranks},
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "target_modules": _targets(adapted, modules, parameters=False),
        "target_parameters": _targets(adapted, modules, parameters=True) or None,
        "inference_mode": True,
    }
    with new_folder(path) as folder:
        tensors = {name: np.ascontiguousarray(each) for name, each in tensors.items()}
        save_file(tensors, folder / TENSORS_FILE, metadata={"format": "pt"})
        write_json(folder / CONFIG_FILE, config)
        if tokenizer is not None:
            tokenizer.save(folder)


def _refuse_mistaken(adapted: Sequence[Module], modules: Sequence[Module]) -> None:
    """PEFT 0.18 and later takes target modules of these names for the experts' in models that have
    some, wherever they are."""
    if not any(module.is_parameter for module in modules):
        return
    for module in adapted:
        leaf = module.name.rpartition(".")[2]
        if not module.is_parameter and leaf in ("gate_proj", "up_proj", "down_proj"):
            raise ValueError(
                f"PEFT would take the adapter of {module.name} for one of the experts: export the "
                "merged weights, or leave the feed-forward maps of dense layers and of shared "
                "experts out of lora.targets"
            )


def _flat(module: Module, a: np.ndarray, b: np.ndarray) -> Factors:
    if not module.is_parameter:
        return a, b
    return a.reshape(-1, a.shape[-1]), b.transpose(1, 2, 0).reshape(b.shape[1], -1)


def _targets(adapted: Sequence[Module], modules: Sequence[Module], parameters: bool) -> list[str]:
    """Names that fit these modules and no other: as short ones as there are."""
    targets = set()
    for module in adapted:
        if module.is_parameter == parameters:
            ends = [module.name.rpartition(".")[2], module.suffix][parameters:]
            targets.add(next((e for e in ends if _only(e, adapted, modules)), module.name))
    return sorted(targets)


def _only(end: str, adapted: Sequence[Module], modules: Sequence[Module]) -> bool:
    return all(m in adapted for m in modules if f".{m.name}".endswith(f".{end}"))
