"""Does resampling find successes where sampling from the start finds none? Expect: in most tasks.
python -m ale_jax.launch --config=configs/experiments/vault.py --workdir=runs/vault

A vault takes eleven commands and an answer, with two doors at ten places, where lights guide.
Demonstrations are of treks, where they warn. Arms: `python -m benchmarks.experiments long_horizon`.
Hardware: two CPU cores; no accelerator.
"""

from ml_collections import ConfigDict

from configs.experiments import shell


def get_config(algorithm: str = "ipa") -> ConfigDict:
    c = shell.get_config(algorithm)
    c.name = "vault"
    c.worlds.train_families = ("vault",)
    c.warm_start.domains = ({"name": "shown", "families": ("trek",), "ratio": 1},)
    # No transcript of a trek is likely, so the probe never says that it is enough.
    c.warm_start.update(transcripts_per_family=768, target_success=1.0)
    # Many tasks a step, and few episodes of each: with 64 tasks all are seen every four steps.
    c.rl.update(steps=120, groups_per_step=16, group_size=4)
    # Where most groups succeed, gradients are small and mostly noise. Muon would make full steps of
    # them, and so would AdamW whose memory is short; that of 1,000 steps still knows larger ones.
    c.rl_optimizer.update(name="adamw", learning_rate=1e-3, b2=0.999, decay_steps=120)
    c.agent.turns = 12
    c.engine.update(max_sequence_length=640, pages=20 * 640 // 16)
    return c
