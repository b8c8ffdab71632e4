"""Which tokens get more credit for what attention shows of them."""

from __future__ import annotations

import dataclasses

from ale_jax.config.setting import Settings, setting

CREDITS = ("none", "local", "global", "coupled", "random")
# How many tokens `ale_jax.model.attention_credit` can look back from one block of queries.
MAX_REACH = 128


@dataclasses.dataclass(frozen=True)
class AttentionCreditHypers(Settings):
    """Which tokens get more credit, and how much."""

    credit: str = setting(
        "none",
        '"none"; "local": the tokens where the local heads\' distance changes most; "global": the '
        'anchors; "coupled": both, Eq 18; "random": as many tokens, chosen at random, as a '
        "control.",
        choices=CREDITS,
    )
    amplification: float = setting(
        1.5,
        "gamma_amp, the factor on the advantage of a chosen token.",
        at_least=1.0,
        at_most=1e3,
        remedy="1 changes nothing",
    )
    top_share: float = setting(
        0.4,
        "q, the share of a trajectory's policy tokens that are chosen.",
        at_least=0.0,
        at_most=1.0,
        remedy="it is a share",
    )
    layers: int = setting(
        5,
        "number of analysed layers, evenly spaced in the middle third of the layers; fewer if the "
        "third has fewer.",
        at_least=1,
        at_most=1000,
        remedy="at least one layer is needed",
    )
    head_share: float = setting(
        0.3,
        "the share of the heads in these layers that are local (those with the shortest reach), "
        "and the share that are global (those with the longest).",
        at_least=0.0,
        at_most=0.5,
        remedy="a head cannot be both local and global",
    )
    window: int = setting(
        10,
        "W of WAAD, in tokens.",
        at_least=1,
        at_most=MAX_REACH,
        remedy="0 would make WAAD 0 everywhere",
    )
    horizon_low: int = setting(
        10,
        "range of distances, in tokens, at which FAI counts later attention.",
    )
    horizon_high: int = setting(
        50,
        "range of distances, in tokens, at which FAI counts later attention.",
        at_least=1,
        at_most=MAX_REACH,
        remedy="50 is usual",
    )
    introduction_share: float = setting(
        0.4,
        "alpha of Eq 18, the share of a dominated anchor's bonus that goes to the token that "
        'introduces it. The paper gives no value; the "+30 % and +20 %" of a summary correspond '
        "to 0.4.",
        at_least=0.0,
        at_most=1.0,
        remedy="it is a share",
    )
    introduction_tokens: int = setting(
        3,
        "k of Eq 18, how many tokens before the anchor that token may be; the paper tried 1 to 3.",
        at_least=1,
        at_most=64,
        remedy="1 to 3",
    )
    dominated_share: float = setting(
        0.5,
        "an anchor can be dominated if its WAAD is in this lowest share of its trajectory's "
        "values. This is tau_waad of Eq 18 as a quantile, for which the paper gives no value; the "
        "default is one half.",
        at_least=0.0,
        at_most=1.0,
        remedy="it is a share",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.horizon_low <= self.horizon_high:
            raise ValueError(
                f"horizon_low {self.horizon_low} must be in [0, {self.horizon_high}]: "
                "at most horizon_high"
            )
