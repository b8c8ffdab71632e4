"""Checks of what a warm start learns from recorded conversations."""

from __future__ import annotations

from ale_jax.config.run import RunConfig


def check_recorded(config: RunConfig) -> None:
    """Raises ValueError for fields that contradict each other, or would do nothing."""
    warm = config.warm_start
    names = [data.name for data in warm.data]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"warm_start.data names {twice[0]!r} twice: its curves need other names")
    if warm.data and not warm.max_steps:
        raise ValueError("warm_start.data needs warm_start.max_steps above 0, the most updates")
    for name in ("epochs", "held_out_share"):
        if getattr(warm, name) and not warm.data:
            raise ValueError(
                f"warm_start.{name} {getattr(warm, name)} is about warm_start.data, which is "
                "empty: name recorded conversations, or set it to 0"
            )
    if warm.patience and not warm.held_out_share:
        raise ValueError(
            f"warm_start.patience {warm.patience} waits for the loss on what is held out: set "
            "warm_start.held_out_share above 0, or this to 0"
        )
    if config.demonstrated:
        return
    for name, off in (("target_success", 1.0), ("noisy_share", 0.0)):
        if (found := getattr(warm, name)) != off:
            raise ValueError(
                f"warm_start.{name} {found} is about oracles' transcripts, and there are none "
                f"beside warm_start.data: set it to {off}, or name worlds in warm_start.domains"
            )
