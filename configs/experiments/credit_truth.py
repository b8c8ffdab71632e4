"""Is the credit of a chunk what the chunk was worth? Expect: GAE with lambda 0.95 is closest.
python -m ale_jax.launch --config=configs/experiments/credit_truth.py --workdir=runs/credit_truth

Makes the policy of `python -m benchmarks.credit_truth`, which succeeds in some attempts and fails
in others, after two minutes of supervised training on three families. There is no reinforcement
learning. Hardware: two CPU cores; no accelerator.
"""

from ml_collections import ConfigDict

from ale_jax.configs.experiments import shell


def get_config(algorithm: str = "ipa") -> ConfigDict:
    c = shell.get_config(algorithm)
    c.name = "credit_truth"
    c.worlds.train = ({"world": "shell", "families": ("vault", "trail", "lane")},)
    c.warm_start.update(max_steps=500, target_success=0.4)
    c.rl.steps = 0
    c.eval.tasks = 90
    c.agent.turns = 14
    c.engine.update(max_sequence_length=640, pages=20 * 640 // 16)
    return c
