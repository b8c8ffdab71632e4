"""Learning from preference pairs."""

from __future__ import annotations

import dataclasses

from ale_jax.config.recorded import PreferenceData
from ale_jax.config.setting import Settings, setting


@dataclasses.dataclass(frozen=True)
class PreferencesConfig(Settings):
    """Direct preference optimization (Rafailov et al. 2023) on recorded pairs, between the warm
    start and reinforcement learning. The reference is the policy with which it begins. It ends with
    the epochs, or when the loss on the pairs that are held out no longer falls.
    """

    data: tuple[PreferenceData, ...] = setting(
        (), "what is learned from, as `PreferenceData`; empty: there is no such stage."
    )
    beta: float = setting(
        0.1,
        "factor of the log-ratios of policy and reference: the higher, the nearer the policy stays "
        "to the reference.",
        above=0.0,
        at_most=1e6,
    )
    pairs_per_step: int = setting(32, "pairs of an update.", at_least=1)
    epochs: int = setting(1, "passes over each of `data`.", at_least=1)
    measure_every: int = setting(
        10, "updates between two points of its curves, and two measurements.", at_least=1
    )
    held_out_share: float = setting(
        0.0,
        "share of the pairs, chosen by their prompts, that is not trained on but measured.",
        at_least=0.0,
        below=1.0,
        remedy="it is a share",
    )
    patience: int = setting(
        0,
        "measurements in a row without a new lowest loss on what is held out, after which the "
        "stage ends; 0: they do not end it.",
        at_least=0,
    )
    mask_errors: bool = setting(
        False, "exclude replies whose call met an error, of both sides of a pair."
    )
    mask_repeats: bool = setting(
        False, "exclude replies that repeat an earlier one, of both sides of a pair."
    )
