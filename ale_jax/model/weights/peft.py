"""Adapters in PEFT's format: a folder with adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.model import LoraShape
from ale_jax.files import read_json, write_json
from ale_jax.model.lora import chosen_maps
from ale_jax.model.params import Params
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.model.weights.export import new_folder
from ale_jax.model.weights.hub import is_name, split
from ale_jax.model.weights.peft_modules import EXPERTS, Factors, Module, modules_of
from ale_jax.model.weights.safetensors_file import read_header

CONFIG_FILE, TENSORS_FILE = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
READ = {
    *("peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "bias"),
}
# Fields that say nothing about what adapters compute, or what the tensors say, too.
HARMLESS = {
    *("auto_mapping", "base_model_name_or_path", "exclude_modules", "inference_mode"),
    *("init_lora_weights", "layers_pattern", "layers_to_transform", "lora_dropout"),
    *("megatron_core", "peft_version", "qalora_group_size", "revision", "target_modules"),
    *("target_parameters", "task_type"),
}


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
        key = _key(module, nested)
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
        "alpha_pattern": {each: lora.scale * _divisor(ranks[each], lora.rslora) for each in ranks},
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


def _divisor(rank: int, rslora: bool) -> float:
    return math.sqrt(rank) if rslora else rank


def _key(module: Module, nested: set[int]) -> str:
    """The name of a module's adapter. PEFT wraps the experts' parameters one around the other,
    down_proj outermost. nested: the layers of which down_proj has an adapter."""
    if not module.is_parameter:
        return PREFIX + module.name
    experts, _, name = module.name.rpartition(".")
    is_inner = name == EXPERTS["gate"] and module.layer in nested
    return f"{PREFIX}{experts}{'.base_layer' * is_inner}"


def _flat(module: Module, a: np.ndarray, b: np.ndarray) -> Factors:
    if not module.is_parameter:
        return a, b
    return a.reshape(-1, a.shape[-1]), b.transpose(1, 2, 0).reshape(b.shape[1], -1)


def _stacked(module: Module, a: np.ndarray, b: np.ndarray) -> Factors:
    """The inverse of `_flat`."""
    if not module.is_parameter:
        return a, b
    experts = module.parts[0].param.shape[0]
    by_expert = b.reshape(b.shape[0], -1, experts)
    return a.reshape(experts, -1, a.shape[-1]), by_expert.transpose(2, 0, 1)


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


def load_peft(path: Path, shape: PolicyShape, lora: LoraShape) -> list[Params]:
    """Reads the adapters of a folder, those of each layer, as float32 arrays of the host.

    Raises:
      ValueError: it is not as `lora` says, field by field, or has what we do not compute.
    """
    config = _read_config(path / CONFIG_FILE, lora)
    if not (path / TENSORS_FILE).is_file():
        raise ValueError(f"there is no {path / TENSORS_FILE}: adapters in .bin files are not read")
    read_header(path / TENSORS_FILE)  # refuses what is damaged
    tensors = load_file(path / TENSORS_FILE)
    wanted = chosen_maps(shape, lora.targets)
    found: list[Params] = [{} for _ in shape.layers]
    for module in modules_of(shape):
        names = [part.name for part in module.parts if part.name in wanted[module.layer]]
        for part, factors in _taken(tensors, module, config):
            a, b = (each.astype(np.float32) for each in factors)
            _check_scale(path, part, a.shape[-2], config, lora)
            for name, adapter in part.adapters(a, b, lora.rank, names).items():
                if name in names or adapter["b"].any():  # else the module's is of other maps
                    found[module.layer][name] = adapter
    if tensors:
        raise ValueError(f"{path / TENSORS_FILE}: {min(tensors)} belongs to no map of this model")
    for number, (names, adapters) in enumerate(zip(wanted, found, strict=True)):
        if set(names) != set(adapters):
            name = min(set(names) ^ set(adapters))
            has = "has an adapter of" if name in adapters else "has no adapter of"
            raise ValueError(f"{path} {has} {name} in layer {number}: set lora.targets to its maps")
    return found


def _read_config(path: Path, lora: LoraShape) -> Mapping[str, Any]:
    if not path.is_file():
        raise ValueError(f"there is no {path}: lora.start names a folder in PEFT's format")
    config = read_json(path)
    if not isinstance(config, dict):
        raise ValueError(f"{path} is not an object")
    for name, wanted in (("peft_type", "LORA"), ("bias", "none"), ("r", lora.rank)):
        if config.get(name) != wanted:
            raise ValueError(f"{path}: {name} {config.get(name)!r:.40} must be {wanted!r}")
    for name, value in config.items():
        if value and name not in READ | HARMLESS:
            raise ValueError(f"{path}: {name:.40} {value!r:.40} is not supported")
    return config


def _check_scale(
    path: Path, module: Module, rank: int, config: Mapping[str, Any], lora: LoraShape
) -> None:
    alpha = _of_pattern(config.get("alpha_pattern"), module, config.get("lora_alpha"))
    told = _of_pattern(config.get("rank_pattern"), module, config["r"])
    if told != rank:
        raise ValueError(f"{path}: {module.name} has rank {rank}, and the config says {told!r:.40}")
    rslora = bool(config.get("use_rslora"))
    is_number = isinstance(alpha, int | float)
    if not is_number or not math.isclose(alpha, lora.scale * _divisor(rank, rslora), rel_tol=1e-6):
        raise ValueError(
            f"{path}: {module.name} has alpha {alpha!r:.40}, rank {rank} and use_rslora {rslora}, "
            f"which is not the scale {lora.scale:g} of lora.alpha, lora.rank and lora.rslora: set "
            "them as they are there"
        )


def _of_pattern(patterns: Any, module: Module, default: Any) -> Any:
    """Returns the value of the name in a pattern that a module's ends with. Expressions that are no
    names fit none, and are then found to disagree with the tensors."""
    found = [v for name, v in (patterns or {}).items() if f".{module.name}".endswith(f".{name}")]
    return found[0] if found else default


def _taken(
    tensors: dict[str, np.ndarray], module: Module, config: Mapping[str, Any]
) -> Iterator[tuple[Module, Factors]]:
    """Takes the adapters of a module out of the tensors, each with the part of it that it is of:
    all, or one of our maps, if each expert has a module of its own, as in transformers 4."""
    for part in module.parts:
        if part.stored.is_per_expert:
            names = [PREFIX + name.removesuffix(".weight") for name in part.stored.names]
            if f"{names[0]}.lora_A.weight" in tensors:
                each = [_pair(tensors, name) for name in names]
                a, b = (np.stack(factors) for factors in zip(*each, strict=True))
                yield dataclasses.replace(module, parts=(part,)), (a, b)
    if module.is_parameter:
        targets = config.get("target_parameters") or ()
        if not any(f".{module.name}".endswith(f".{target}") for target in targets):
            return
    is_nested = f"{_key(module, {module.layer})}.lora_A.weight" in tensors
    key = _key(module, {module.layer} if is_nested else set())
    if f"{key}.lora_A.weight" in tensors:
        yield module, _stacked(module, *_pair(tensors, key))


def _pair(tensors: dict[str, np.ndarray], key: str) -> Factors:
    for name in (f"{key}.lora_A.weight", f"{key}.lora_B.weight"):
        if name not in tensors:
            raise ValueError(f"{TENSORS_FILE}: tensor {name} is missing")
    return tensors.pop(f"{key}.lora_A.weight"), tensors.pop(f"{key}.lora_B.weight")
