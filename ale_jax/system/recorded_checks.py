"""Checks of what is learned from recorded conversations and preference pairs."""

from __future__ import annotations

from collections.abc import Sequence

from ale_jax.config.preferences import PreferencesConfig
from ale_jax.config.recorded import DataFiles
from ale_jax.config.run import RunConfig


def check_recorded(config: RunConfig) -> None:
    """Raises ValueError for fields that contradict each other, or would do nothing."""
    _check_names(config.warm_start.data)
    _check_names(config.preferences.data)
    _check_preferences(config.preferences)
    warm = config.warm_start
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


def _check_names(sets: Sequence[DataFiles]) -> None:
    names = [data.name for data in sets]
    if twice := [data for data in sets if names.count(data.name) > 1]:
        first = twice[0]
        raise ValueError(f"{first.LIST} names {first.name!r} twice: its curves need other names")


def _check_preferences(hp: PreferencesConfig) -> None:
    if not hp.data:
        for name, value in vars(hp).items():
            if value != getattr(PreferencesConfig(), name):
                raise ValueError(
                    f"preferences.{name} {value} is about preferences.data, which is empty: name "
                    "files of pairs, or leave it out"
                )
    if hp.patience and not hp.held_out_share:
        raise ValueError(
            f"preferences.patience {hp.patience} waits for the loss on what is held out: set "
            "preferences.held_out_share above 0, or this to 0"
        )
