"""Does chunk credit (IPA) beat token-level GRPO, all else equal? Expect: GRPO learns, ends lower.
python -m ale_jax.launch --config=configs/grpo.py --workdir=runs/grpo

Differs from configs/quickstart.py in the algorithm alone: compare the two runs' reports at the same
--config.seed. Hardware: two CPU cores; no accelerator.
"""

from ml_collections import ConfigDict

from configs import quickstart


def get_config() -> ConfigDict:
    c = quickstart.get_config()
    c.name = "grpo"
    c.rl.algorithm = "grpo"
    return c
