"""Adapters in PEFT's format: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from ale_jax.files import write_json
from ale_jax.model.lora import LoraShape
from ale_jax.model.params import Params

ATTENTION = ("q", "k", "v", "o")
PREFIX = "base_model.model.model.layers"


def save_peft(folder: Path, params: Params, lora: LoraShape, base_model: str) -> None:
    """Writes the adapters of `params`. base_model: name or path of the base weights, as
    transformers loads them.

    Raises:
      ValueError: there are no adapters, or experts have some, for which PEFT's format has no names.
    """
    if "adapters" not in params:
        raise ValueError("there are no adapters to export: these weights were trained in full")
    tensors = {
        f"{PREFIX}.{layer}.{module}": array
        for layer, adapters in enumerate(params["adapters"])
        for name, adapter in adapters.items()
        for module, array in _tensors(layer, name, adapter).items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "target_modules": [f"{target}_proj" for target in lora.targets],
        "inference_mode": True,
    }
    write_json(folder / "adapter_config.json", config)


def _tensors(layer: int, name: str, adapter: Params) -> dict[str, np.ndarray]:
    target, _, axes = name.partition("_")
    if axes.startswith("E"):
        raise ValueError(
            f"layer {layer} has adapters of {target} in each expert, which PEFT has no names for: "
            "export the merged weights, or leave gate, up and down out of lora.targets"
        )
    block = "self_attn" if target in ATTENTION else "mlp"
    a, b = np.asarray(adapter["a"]), np.asarray(adapter["b"])
    rank = a.shape[-1]
    return {  # torch's linear layers store [out, in]
        f"{block}.{target}_proj.lora_A.weight": np.ascontiguousarray(a.reshape(-1, rank).T),
        f"{block}.{target}_proj.lora_B.weight": np.ascontiguousarray(b.reshape(rank, -1).T),
    }
