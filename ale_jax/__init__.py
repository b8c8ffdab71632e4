"""ALE-JAX: the open Agentic Learning Ecosystem on JAX.

`train`, `evaluate` and `serve` are those of `ale_jax.entry`, which is imported when they are used.
"""

from __future__ import annotations

from typing import Any

__all__ = ("evaluate", "serve", "train")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'ale_jax' has no attribute {name!r}")
    from ale_jax import entry

    return getattr(entry, name)
