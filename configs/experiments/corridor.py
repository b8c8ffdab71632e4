"""Does credit by chunk pay where few chunks decide? Expect: where the last do, not the first.
python -m ale_jax.launch --config=configs/experiments/corridor.py --workdir=runs/corridor

A corridor of 16 rooms, of which three decide; a wrong door shows only in the verdict. Choose with
`:VARIANT`: `late` (the last three decide; the default) or `early` (the first three), then, if
wanted, the depth (`late24`, at most 48) and an algorithm (`early_grpo`; `grpo` alone is
`late_grpo`). The policy is the quickstart's; trajectories are eight versions old.

In the demonstrations, any three rooms decide, which differ and cannot be seen, and the oracle takes
any door in the others. So the warm start follows the light in up to 46 % of the rooms, wherever
they are, and 7 to 12 % of its episodes succeed in each variant. (Demonstrations of the variant
itself teach where to follow it: 96 % after 60 updates.)
Hardware: two CPU cores; no accelerator.
"""

import re

from ml_collections import ConfigDict

from ale_jax.configs import quickstart

VARIANT = re.compile(r"(?:(?P<place>late|early)(?P<depth>\d*)(?:_|$))?(?P<algorithm>\w*)")


def get_config(variant: str = "late") -> ConfigDict:
    chosen = VARIANT.fullmatch(variant)
    if chosen is None:
        raise ValueError(f"variant {variant!r} is unknown: choose late, early, late24_grpo, ...")
    place, depth = chosen["place"] or "late", chosen["depth"] or "16"
    c = quickstart.get_config(chosen["algorithm"] or "ipa")
    c.name = "corridor"
    setting = "" if depth == "16" else f"-depth{depth}"
    family = f"corridor{setting}-{{}}3".format
    c.worlds.train = ({"world": "corridor", "families": (family(place),)},)
    c.worlds.held_out = ()
    c.warm_start.domains = ({"world": "corridor", "families": (family("any"),)},)
    c.eval.held_out_tasks = 0
    _make_room(c, int(depth))
    # No transcript of a corridor is likely, so the probe cannot tell when the warm start has
    # succeeded.
    c.warm_start.update(transcripts_per_family=768, max_steps=100, target_success=1.0)
    c.rl.update(steps=120, groups_per_step=8, group_size=8, alpha=8.0, fill_queue=True)
    c.algo.loss.negative_weight = 1.0  # as in the papers that are compared
    return c


def _make_room(c: ConfigDict, depth: int) -> None:
    """A room takes 31 tokens, the beginning and the end together 67; four turns may be wasted."""
    turns = depth + 5
    length = 16 * -(-(32 * turns + 80) // 16)
    c.agent.turns = turns
    c.engine.update(max_sequence_length=length, pages=20 * length // 16)
    c.learn.update(pack_length=max(640, length), chunks_per_pack=max(32, turns))
