"""Does resampling find successes where sampling from the start finds none? Expect: in most tasks.
python -m ale_jax.launch --config=configs/experiments/vault.py --workdir=runs/vault

A vault takes eleven commands and an answer: at ten places, a light shows which of two doors is
right. The demonstrations are treks, in which the light usually shows the wrong door.
Arms: `python -m benchmarks.experiments long_horizon`.
Hardware: two CPU cores; no accelerator.
"""

from ml_collections import ConfigDict

from ale_jax.configs.experiments import shell


def get_config(algorithm: str = "ipa") -> ConfigDict:
    c = shell.get_config(algorithm)
    c.name = "vault"
    c.worlds.train = ({"world": "shell", "families": ("vault",)},)
    c.warm_start.domains = ({"world": "shell", "families": ("trek",)},)
    # No transcript of a trek is likely, so the probe cannot tell when the warm start has succeeded.
    c.warm_start.update(transcripts_per_family=768, target_success=1.0)
    # Many tasks per step with few episodes each: with 64 tasks, all are played every four steps.
    c.rl.update(steps=120, groups_per_step=16, group_size=4)
    # When most groups succeed, gradients are small and mostly noise. Muon would still make full
    # steps, and so would AdamW with a short memory. With b2 0.999, AdamW averages over about 1,000
    # steps, which include larger gradients, so that its steps become small.
    c.rl_optimizer.update(name="adamw", learning_rate=1e-3, b2=0.999)
    c.agent.turns = 12
    c.engine.update(max_sequence_length=640, pages=20 * 640 // 16)
    return c
