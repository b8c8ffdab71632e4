"""Do all parts of a run work together? Expect: it ends without an error within seconds.
python -m ale_jax.launch --config=configs/smoke.py --workdir=runs/smoke

It is too small to learn anything: two steps of each kind, with a checkpoint after every step.
Hardware: two CPU cores; no accelerator.
"""

from ml_collections import ConfigDict

from ale_jax.configs import quickstart


def get_config(algorithm: str = "ipa") -> ConfigDict:
    c = quickstart.get_config(algorithm)
    c.name = "smoke"
    c.model.update(
        width=32, num_layers=2, dense_layers=(0,), num_heads=2, num_kv_heads=1, head_width=16
    )
    c.model.update(mlp_width=48, num_experts=4, expert_width=24)
    c.tokenizer.vocab_size = 320
    c.worlds.train = ({"world": "shell", "families": ("trail", "count")},)
    c.worlds.held_out = ({"world": "shell", "families": ("relay",)},)
    c.agent.turns = 2
    c.rollout.update(workers="threads", actors=1, episodes_per_actor=4, max_reply_tokens=8)
    c.engine.max_sequences = 8
    c.learn.update(microbatch_rows=8, chunks_per_pack=8)
    c.warm_start.update(transcripts_per_family=8, rows_per_step=8, max_steps=2)
    c.warm_start.update(probe_every=1, probe_tasks=2)
    c.rl.update(steps=2, groups_per_step=2, group_size=2)
    c.eval.update(tasks=2, held_out_tasks=1)
    c.checkpoint.every = 1
    return c
