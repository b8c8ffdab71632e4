"""Does attention credit help within a single reply? Expect: no more than random tokens do.
python -m ale_jax.launch --config=configs/experiments/countdown.py --workdir=runs/countdown

One turn without a sandbox: the steps of a calculation, and then the expression. The arms are those
of `python -m benchmarks.experiments attention_credit`. Failures have full weight, as in GRPO.
Hardware: two CPU cores; no accelerator.
"""

from ml_collections import ConfigDict

from ale_jax.configs.experiments import shell


def get_config(algorithm: str = "ipa") -> ConfigDict:
    c = shell.get_config(algorithm)
    c.name = "countdown"
    c.tokenizer.vocab_size = 400
    c.worlds.train = ({"world": "countdown", "families": ("countdown3",)},)
    c.agent.turns = 1
    c.rollout.episodes_per_actor = 16
    c.engine.update(max_sequences=32, max_sequence_length=128, pages=32 * 128 // 16)
    c.learn.update(pack_length=256)
    c.warm_start.update(transcripts_per_family=2048, target_success=0.02)
    # A single reply is quick to play, and the arms differ little, so that more steps and more
    # unseen tasks are both possible and needed.
    c.rl.update(steps=150, groups_per_step=16)
    c.algo.loss.negative_weight = 1.0
    c.eval.tasks = 960
    return c
