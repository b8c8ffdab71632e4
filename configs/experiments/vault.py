"""Does resampling find successes where sampling from the start finds none? Expect: in most tasks.
python -m ale_jax.launch --config=configs/experiments/vault.py --workdir=runs/vault

The vault takes eleven commands and an answer, with three ways at ten places. Demonstrations are of
other families: in treks, which are as long, all ways lead to the end. Arms:
`python -m benchmarks.experiments long_horizon`.
Hardware: two CPU cores; no accelerator.
"""

from ml_collections import ConfigDict

from configs.experiments import shell


def get_config(algorithm: str = "ipa") -> ConfigDict:
    c = shell.get_config(algorithm)
    c.name = "vault"
    families = (*c.worlds.train_families, "trek")
    c.warm_start.domains = ({"name": "shown", "families": families, "ratio": 1},)
    c.worlds.train_families = ("vault",)
    # The question is what it dares, not whether it copies names without a fault. A quarter of what
    # is shown are treks, of which no transcript is likely.
    c.warm_start.update(max_steps=400, target_success=0.6)
    c.rl.steps = 120
    c.rl_optimizer.decay_steps = 120
    c.agent.turns = 12
    c.engine.update(slot_tokens=640, pages=20 * 640 // 16)
    return c
