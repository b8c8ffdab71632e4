"""Reads adapters in PEFT's format. A folder may come from anybody: what does not fit the model to
the last dimension, or would compute something else, is refused by name."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.model import LoraShape
from ale_jax.files import read_json
from ale_jax.model.lora import chosen_maps
from ale_jax.model.params import Params
from ale_jax.model.weights.peft_modules import (
    CONFIG_FILE,
    PREFIX,
    TENSORS_FILE,
    Factors,
    Module,
    divisor,
    key_of,
    modules_of,
)
from ale_jax.model.weights.safetensors_file import read_header

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
LARGEST = 3e38  # that does not become inf in bfloat16
MAX_RANK = 1024  # of a map of an adapter that is served


class _Found(NamedTuple):
    """The adapter of a module, or of one of the maps that share it. told: its scale in words."""

    module: Module
    a: np.ndarray
    b: np.ndarray
    scale: float
    told: str

    @property
    def rank(self) -> int:
        return self.a.shape[-2]


def load_peft(path: Path, shape: PolicyShape, lora: LoraShape) -> list[Params]:
    """Reads the adapters of a folder, those of each layer, as float32 arrays of the host.

    Raises:
      ValueError: it is not as `lora` says, field by field, or has what we do not compute.
    """
    config = _read_config(path / CONFIG_FILE)
    if config.get("r") != lora.rank:
        raise ValueError(f"{path / CONFIG_FILE}: r {config.get('r')!r:.40} must be {lora.rank}")
    wanted = chosen_maps(shape, lora.targets)
    found: list[Params] = [{} for _ in shape.layers]
    for each in _found(path, shape, config):
        if not math.isclose(each.scale, lora.scale, rel_tol=1e-6):
            raise ValueError(
                f"{path}: {each.told}, which is not the scale {lora.scale:g} of lora.alpha, "
                "lora.rank and lora.rslora: set them as they are there"
            )
        layer = each.module.layer
        names = [part.name for part in each.module.parts if part.name in wanted[layer]]
        for name, adapter in each.module.adapters(each.a, each.b, lora.rank, names).items():
            if name in names or adapter["b"].any():  # else the module's is of other maps
                found[layer][name] = adapter
    for number, (names, adapters) in enumerate(zip(wanted, found, strict=True)):
        if set(names) != set(adapters):
            name = min(set(names) ^ set(adapters))
            has = "has an adapter of" if name in adapters else "has no adapter of"
            raise ValueError(f"{path} {has} {name} in layer {number}: set lora.targets to its maps")
    return found


def load_any_peft(path: Path, shape: PolicyShape) -> list[Params]:
    """Reads the adapters of a folder, of whatever maps, ranks and scales it says. Returns those of
    each layer, as float32 arrays of the host, with the scale in "a".

    Raises:
      ValueError: it has what we do not compute, or is for another model.
    """
    loaded: list[Params] = [{} for _ in shape.layers]
    for module, a, b, scale, _ in _found(path, shape, _read_config(path / CONFIG_FILE)):
        if a.shape[-2] > MAX_RANK:
            raise ValueError(f"{path}: {module.name} has rank {a.shape[-2]}, more than {MAX_RANK}")
        loaded[module.layer] |= module.adapters(a * np.float32(scale), b, a.shape[-2], ())
    if not any(loaded):
        raise ValueError(f"{path} has no adapters")
    return loaded


def base_of(path: Path) -> str:
    """Returns the name of the model that a folder's adapters are of, as it says; "" if it does not.
    ValueError as for `load_peft`."""
    name = _read_config(path / CONFIG_FILE).get("base_model_name_or_path")
    return name if isinstance(name, str) else ""


def _read_config(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise ValueError(f"there is no {path}: name a folder in PEFT's format")
    config = read_json(path)
    if not isinstance(config, dict):
        raise ValueError(f"{path} is not an object")
    for name, wanted in (("peft_type", "LORA"), ("bias", "none")):
        if config.get(name) != wanted:
            raise ValueError(f"{path}: {name} {config.get(name)!r:.40} must be {wanted!r}")
    for name, value in config.items():
        if value and name not in READ | HARMLESS:
            raise ValueError(f"{path}: {name:.40} {value!r:.40} is not supported")
    for name in ("rank_pattern", "alpha_pattern"):
        if not isinstance(config.get(name) or {}, dict):
            raise ValueError(f"{path}: {name} {config[name]!r:.40} is not an object")
    targets = config.get("target_parameters") or []
    if not isinstance(targets, list) or not all(isinstance(each, str) for each in targets):
        raise ValueError(f"{path}: target_parameters {targets!r:.40} is not a list of names")
    return config


def _found(path: Path, shape: PolicyShape, config: Mapping[str, Any]) -> Iterator[_Found]:
    """All adapters of a folder. ValueError if there is something else."""
    if not (path / TENSORS_FILE).is_file():
        raise ValueError(f"there is no {path / TENSORS_FILE}: adapters in .bin files are not read")
    read_header(path / TENSORS_FILE)  # refuses what is damaged
    tensors = load_file(path / TENSORS_FILE)
    for module in modules_of(shape):
        for part, (a, b) in _taken(path / TENSORS_FILE, tensors, module, config):
            scale, told = _scale(path, part, a.shape[-2], config)
            yield _Found(part, a, b, scale, told)
    if tensors:
        raise ValueError(f"{path / TENSORS_FILE}: {min(tensors)} belongs to no map of this model")


def _scale(path: Path, module: Module, rank: int, config: Mapping[str, Any]) -> tuple[float, str]:
    """What an adapter is multiplied by, and that in words."""
    alpha = _of_pattern(config.get("alpha_pattern"), module, config.get("lora_alpha"))
    told = _of_pattern(config.get("rank_pattern"), module, config.get("r"))
    if told != rank:
        raise ValueError(f"{path}: {module.name} has rank {rank}, and the config says {told!r:.40}")
    rslora = bool(config.get("use_rslora"))
    words = f"{module.name} has alpha {alpha!r:.40}, rank {rank} and use_rslora {rslora}"
    if type(alpha) not in (int, float) or not abs(alpha) < 1e6:
        raise ValueError(f"{path}: {words}: alpha must be a number below 1e6")
    return alpha / divisor(rank, rslora), words


def _of_pattern(patterns: Any, module: Module, default: Any) -> Any:
    """Returns the value of the name in a pattern that a module's ends with. Expressions that are no
    names fit none, and are then found to disagree with the tensors."""
    found = [v for name, v in (patterns or {}).items() if f".{module.name}".endswith(f".{name}")]
    return found[0] if found else default


def _taken(
    file: Path, tensors: dict[str, np.ndarray], module: Module, config: Mapping[str, Any]
) -> Iterator[tuple[Module, Factors]]:
    """Takes the adapters of a module out of the tensors, each with the part of it that it is of:
    all, or one of our maps, if each expert has a module of its own, as in transformers 4."""
    for part in module.parts:
        if part.stored.is_per_expert:
            names = [PREFIX + name.removesuffix(".weight") for name in part.stored.names]
            if f"{names[0]}.lora_A.weight" in tensors:
                each = [_pair(file, tensors, name) for name in names]
                if len({a.shape + b.shape for a, b in each}) > 1:
                    raise ValueError(f"{file}: the adapters of {module.name} differ in shape")
                a, b = (np.stack(factors) for factors in zip(*each, strict=True))
                yield dataclasses.replace(module, parts=(part,)), (a, b)
    if module.is_parameter:
        targets = config.get("target_parameters") or ()
        if not any(f".{module.name}".endswith(f".{target}") for target in targets):
            return
    is_nested = f"{key_of(module, {module.layer})}.lora_A.weight" in tensors
    key = key_of(module, {module.layer} if is_nested else set())
    if f"{key}.lora_A.weight" in tensors:
        yield module, _stacked(module, *_pair(file, tensors, key))


def _pair(file: Path, tensors: dict[str, np.ndarray], key: str) -> Factors:
    """A [rank, in] and B [out, rank], float32."""
    found = []
    for name in (f"{key}.lora_A.weight", f"{key}.lora_B.weight"):
        if name not in tensors:
            raise ValueError(f"{file}: tensor {name} is missing")
        with np.errstate(over="ignore"):  # refused below
            tensor = tensors.pop(name).astype(np.float32)
        if tensor.ndim != 2 or not tensor.size:
            raise ValueError(f"{file}: tensor {name} of shape {tensor.shape} is no matrix")
        if not (np.abs(tensor) <= LARGEST).all():
            raise ValueError(f"{file}: tensor {name} has values that are not finite in bfloat16")
        found.append(tensor)
    a, b = found
    if len(a) != b.shape[1]:
        raise ValueError(f"{file}: {key} has A {a.shape} and B {b.shape}, which differ in rank")
    return a, b


def _stacked(module: Module, a: np.ndarray, b: np.ndarray) -> Factors:
    """The inverse of `peft._flat`."""
    if not module.is_parameter:
        return a, b
    experts = module.parts[0].param.shape[0]
    if len(a) % experts:
        raise ValueError(f"{module.name}: {len(a)} rows of A are not those of {experts} experts")
    by_expert = b.reshape(b.shape[0], -1, experts)
    return a.reshape(experts, -1, a.shape[-1]), by_expert.transpose(2, 0, 1)
