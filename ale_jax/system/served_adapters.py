"""The adapters that `serve.adapters` names, beside the policy that is served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.run import RunConfig
from ale_jax.model.params import Params
from ale_jax.model.weights.peft_reader import base_of, load_any_peft


def check_served(config: RunConfig) -> None:
    """Raises ValueError if the policy cannot have the adapters of `serve.adapters` beside it."""
    folders = config.serve.folders
    if folders and config.lora.rank:
        raise ValueError(
            f"serve.adapters cannot lie beside the policy's own (lora.rank {config.lora.rank}): "
            "export those with --adapter, name their folder in serve.adapters, too, and serve "
            "`weights` with lora.rank 0"
        )
    if config.name in folders:
        raise ValueError(f"serve.adapters {config.name!r} is the policy's own name: choose another")


def read_served(
    config: RunConfig, policy: PolicyShape, say: Callable[[str], None]
) -> dict[str, list[Params]]:
    """Reads the adapters, by their names, as `model.served_adapters` takes them. say: is told which
    of them were made for a base of another name. ValueError, with an adapter's name, if it does not
    fit the policy, or has what we do not compute."""
    found = {}
    for name, folder in config.serve.folders.items():
        try:
            found[name] = load_any_peft(Path(folder), policy)
            base = base_of(Path(folder))
        except ValueError as error:
            raise ValueError(f"serve.adapters {name}: {error}") from error
        own = config.weights or "random weights"
        if base and base != own.partition("@")[0]:
            say(f"adapter {name} says that it is of {base}, and is served beside {own}")
    return found
