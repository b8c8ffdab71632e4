"""Policy-gradient algorithms as presets: the config fields in which each differs from the defaults.

`docs/algorithms.md` has a table of them with their equations. On the command line they are chosen
by name, --config=configs/quickstart.py:grpo; `python -m ale_jax.configs.document` explains the
fields. All make one update of a step's groups, unless learn.minibatches and learn.epochs say
otherwise; docs/algorithms.md tells how many the publications make.
"""

from __future__ import annotations

from typing import Any

Algo = dict[str, Any]


def ipa() -> Algo:
    """Interaction-Perceptive Agentic Policy Optimization (2512.24873), with returns, importance
    ratios and masks at the level of chunks."""
    return _algo(
        "ipa",
        _advantage("chunk_return", "group", "none"),
        _loss("topr", "chunk", ratio_cap=1.0),
        mismatch={"filter_level": "chunk", "filter_high": 1.2},
        gamma=0.95,
    )


def ipa_balanced() -> Algo:
    """IPA with the group's mean after the discount, so that of two successes the shorter one is
    better, and with each group's failures scaled to the weight of its successes, in place of
    `negative_weight`."""
    return ipa() | {
        "name": "ipa_balanced",
        "advantage": _advantage("chunk_return", "group", "none", centring="chunk", balance="group"),
    }


def topr() -> Algo:
    """Tapered off-policy REINFORCE (2503.14286). The paper's ratio is the product over the
    trajectory's tokens, here it is their geometric mean: over hundreds of tokens, a product is
    nearly always close to 0 or above the cap."""
    return _algo("topr", _advantage("outcome", "group"), _loss("topr", "sequence", ratio_cap=1.0))


def tis() -> Algo:
    """Truncated importance sampling at the level of tokens."""
    return _algo("tis", _advantage("outcome", "group"), _loss("tis", ratio_cap=1.0))


def cispo() -> Algo:
    """Clipped importance weights (2506.13585); only the upper bound is active."""
    loss = _loss("cispo", clip_low=1.0, clip_high=0.2)
    return _algo("cispo", _advantage("outcome", "group", "group"), loss)


def grpo() -> Algo:
    """Group relative policy optimization (2402.03300), without a KL term. All tokens of the step
    have equal weight (2503.14476); the paper averages over each trajectory ("trajectory_means")."""
    return _algo("grpo", _advantage("outcome", "group", "group"), _ppo())


def dapo() -> Algo:
    """DAPO (2503.14476): GRPO with a higher upper bound of the ratio, and without groups of equal
    outcomes (`rl`). The paper's penalty of overlong replies, which grows with their length, is left
    out; `credit.overlong` has a constant one."""
    return _algo("dapo", _advantage("outcome", "group", "group"), _ppo(clip_high=0.28))


def dr_grpo() -> Algo:
    """GRPO without its biases (2503.20783): no std, and a constant in place of lengths."""
    loss = _ppo(aggregation="constant", constant_tokens=256)
    return _algo("dr_grpo", _advantage("outcome", "group"), loss)


def gspo() -> Algo:
    """Group sequence policy optimization (2507.18071), with the paper's clip range."""
    loss = _loss("ppo", "sequence", clip_low=3e-4, clip_high=4e-4, aggregation="trajectory_means")
    return _algo("gspo", _advantage("outcome", "group", "group"), loss)


def rloo() -> Algo:
    """REINFORCE with the mean of the other group members as baseline (2402.14740)."""
    return _algo("rloo", _advantage("outcome", "leave_one_out"), _loss("vanilla"))


def reinforce() -> Algo:
    """REINFORCE with the discounted return of each token and no baseline."""
    return _algo("reinforce", _advantage("token_return", "none"), _loss("vanilla"))


def reinforce_pp() -> Algo:
    """REINFORCE++ (2501.03262): token returns normalized over the step's tokens, with PPO's
    clipping."""
    return _algo("reinforce_pp", _advantage("token_return", "batch", "batch"), _ppo())


def gigpo() -> Algo:
    """Group-in-group (2505.10978): compares the episode with its group, and each step with other
    steps taken in the same state."""
    advantage = _advantage("gigpo", "group", "group", anchor_weight=1.0)
    return _algo("gigpo", advantage, _ppo(), gamma=0.95)


def gigpo_state() -> Algo:
    """GiGPO as in its paper: a state is the last observation, whenever it was made."""
    advantage = _advantage("gigpo", "group", "group", anchor_weight=1.0, anchor_depth=1)
    return _algo("gigpo_state", advantage, _ppo(), gamma=0.95)


def hgpo() -> Algo:
    """Hierarchy of groups (2602.22817): GiGPO with states by the last one, two and three
    observations, which weigh 1, 2 and 3."""
    anchors = {"anchor_weight": 1.0, "anchor_depth": 3, "anchor_exponent": 1.0}
    return _algo("hgpo", _advantage("hgpo", "group", "group", **anchors), _ppo(), gamma=0.95)


def tree() -> Algo:
    """Differences of mean outcomes along the histories that group members share (2509.21240,
    2506.11902), with IPA's loss."""
    return ipa() | _algo("tree", _advantage("tree", "group"), ipa()["loss"], gamma=1.0)


def step() -> Algo:
    """The discounted return of each step, normalized over the steps of the group."""
    return _algo("step", _advantage("step", "group", "group"), _ppo(), gamma=0.95)


def lite_ppo() -> Algo:
    """Mean of the group, std of the batch, and equal weight for all tokens (2508.08221)."""
    return _algo("lite_ppo", _advantage("outcome", "group", "batch"), _ppo())


def ppo() -> Algo:
    """PPO (1707.06347) with generalized advantages from critics, normalized over the step."""
    return _algo("ppo", _advantage("gae", "batch", "batch"), _ppo(dual_clip=3.0))


def turn_ppo() -> Algo:
    """Turn-PPO (2512.17008): the time steps of values and advantages are chunks, which are
    normalized over the step's chunks; with the paper's discount. The paper's ratio is the product
    over the chunk's tokens, here it is their geometric mean."""
    return _algo(
        "turn_ppo", _advantage("turn_gae", "batch", "batch"), _ppo(level="chunk"), gamma=0.99
    )


def turn_topr() -> Algo:
    """Turn-PPO's credit with TOPR's treatment of old episodes: a success that the policy has moved
    away from keeps its weight, and a failure that it has left behind loses it. A chunk that has
    moved by 5 % where its advantage pushes it is not pushed on, so that a batch can be used several
    times. Within so narrow a range, the difference of engine and learner would count."""
    loss = _loss("topr", "chunk", ratio_cap=1.0, clip_low=0.05, clip_high=0.05)
    advantage = _advantage("turn_gae", "batch", "batch")
    return _algo("turn_topr", advantage, loss, gamma=0.99, old_logp="generating")


def blended_topr() -> Algo:
    """`turn_topr` whose lambda counts as far as the critics know outcomes. While they know nothing,
    early decisions get the credit that they would get without critics; with lambda alone, none."""
    algo = turn_topr()
    advantage = algo["advantage"] | {"estimator": "blended_turn_gae"}
    return algo | {"name": "blended_topr", "advantage": advantage}


def asyppo() -> Algo:
    """AsyPPO (2510.01656): two mini critics, whose agreement masks advantages and whose
    disagreement filters the entropy bonus."""
    loss = _ppo(dual_clip=3.0, entropy_weight=1e-3)
    return _algo("asyppo", _advantage("gae", "batch", "batch"), loss)


def decoupled_ppo() -> Algo:
    """Decoupled PPO (2110.00641): clips around the weights that the step starts from, with an
    importance weight for the policy that wrote the tokens."""
    loss = _ppo("decoupled_ppo", ratio_cap=2.0)
    return _algo("decoupled_ppo", _advantage("outcome", "group", "group"), loss)


def kimi() -> Algo:
    """Kimi k1.5 (2501.12599): the group's mean as baseline, and a squared penalty that keeps the
    policy close. The paper squares the log-ratio of the whole response, here the squares of its
    tokens' log-ratios are added up, so that tau means the same at every length."""
    return _algo("kimi", _advantage("outcome", "group"), _loss("kimi", tau=0.1))


def sapo() -> Algo:
    """Soft adaptive policy optimization (2511.20347): a smooth gate in place of GRPO's clip, with
    the paper's steepness."""
    loss = _loss("sapo", tau=1.0, tau_negative=1.05, aggregation="trajectory_means")
    return _algo("sapo", _advantage("outcome", "group", "group"), loss)


def echo() -> Algo:
    """ECHO (2605.24517): GRPO, and cross entropy on what the environment answered, with the weight
    of the authors' configuration."""
    loss = _ppo(observation_weight=0.05)
    return _algo("echo", _advantage("outcome", "group", "group"), loss)


PRESETS = {
    preset.__name__: preset
    for preset in (
        ipa,
        ipa_balanced,
        topr,
        tis,
        cispo,
        grpo,
        dapo,
        dr_grpo,
        gspo,
        rloo,
        reinforce,
        reinforce_pp,
        gigpo,
        gigpo_state,
        hgpo,
        tree,
        step,
        lite_ppo,
        ppo,
        turn_ppo,
        turn_topr,
        blended_topr,
        asyppo,
        decoupled_ppo,
        kimi,
        sapo,
        echo,
    )
}


def named(name: str) -> Algo:
    """The preset of that name. ValueError if there is none."""
    if name not in PRESETS:
        raise ValueError(f"algorithm {name!r} is unknown: choose one of {', '.join(PRESETS)}")
    return PRESETS[name]()


def critics(name: str) -> dict[str, Any]:
    """The fields in which the preset `name` differs from the critics' defaults: one critic of the
    policy's shape for PPO, Turn-PPO, turn_topr and blended_topr, two much smaller ones for AsyPPO,
    and none for the others.

    lam stays 1. The only reward is at the end of an episode, and critics have seen a few hundred
    episodes, so any smaller lambda would base the credit of early tokens on values that are not yet
    accurate enough. Turn-PPO, whose lambda acts once per chunk, has the paper's; turn_topr and
    blended_topr what did best in the laboratory.
    """
    if name == "ppo":
        return {"count": 1, "warmup_steps": 2}
    if name in ("turn_ppo", "turn_topr", "blended_topr"):
        return {"count": 1, "warmup_steps": 2, "lam": 0.9 if name == "turn_ppo" else 0.8}
    if name == "asyppo":
        sizes = ("width", "num_layers", "num_heads", "num_kv_heads", "head_width", "mlp_width")
        shares = {"mask_share": 0.2, "entropy_share": 0.2}
        small = dict(zip(sizes, (48, 2, 2, 2, 24, 144), strict=True))
        return small | shares | {"count": 2, "warmup_steps": 2}
    return {}


def rl(name: str) -> dict[str, Any]:
    """The fields in which the preset `name` differs from the defaults of the section rl."""
    return {"dynamic_sampling": True} if name == "dapo" else {}


def _algo(name: str, advantage: Algo, loss: Algo, **fields: Any) -> Algo:
    return {"name": name, "advantage": advantage, "loss": loss} | fields


def _advantage(estimator: str, mean: str, std: str = "none", **fields: Any) -> Algo:
    return {"estimator": estimator, "mean": mean, "std": std} | fields


def _loss(kind: str, level: str = "token", **fields: Any) -> Algo:
    return {"kind": kind, "level": level} | fields


def _ppo(kind: str = "ppo", **fields: Any) -> Algo:
    return _loss(kind, **{"clip_low": 0.2, "clip_high": 0.2} | fields)
