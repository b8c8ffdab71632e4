"""Does resampling find successes where sampling from the start finds none? Expect: in most tasks.
python -m ale_jax.launch --config=configs/experiments/vault.py --workdir=runs/vault

The vault takes eleven commands and an answer, with three ways at ten places where demonstrations,
which are of other families, show no choice. Arms: `python -m benchmarks.experiments long_horizon`.
Hardware: two CPU cores; no accelerator.
"""

from ml_collections import ConfigDict

from configs.experiments import shell


def get_config(algorithm: str = "ipa") -> ConfigDict:
    c = shell.get_config(algorithm)
    c.name = "vault"
    families = c.worlds.train_families
    c.warm_start.domains = ({"name": "short", "families": families, "ratio": 1},)
    c.worlds.train_families = ("vault",)
    c.agent.turns = 12
    c.engine.update(slot_tokens=640, pages=20 * 640 // 16)
    return c
