"""Do weights of yours work in all parts of a run? Expect: it ends without an error within minutes.
python -m ale_jax.launch --config=configs/smoke_weights.py --workdir=runs/my --config.weights=MODEL

MODEL: a Hugging Face folder, a .gguf file, or a name on the hub. Two steps, as in smoke.py, with
conversations of up to 1,536 tokens.
Hardware: two CPU cores for some hundred million weights; no accelerator.
"""

from ml_collections import ConfigDict

from ale_jax.config.run import RunConfig
from ale_jax.configs import quickstart


def get_config(algorithm: str = "ipa") -> ConfigDict:
    c = quickstart.get_config(algorithm)
    c.name = "smoke_weights"
    own = RunConfig().to_json()
    c.model, c.tokenizer = ConfigDict(own["model"]), ConfigDict(own["tokenizer"])
    c.worlds.train = ({"world": "shell", "families": ("trail", "count")},)
    c.worlds.held_out = ({"world": "shell", "families": ("relay",)},)
    c.agent.turns = 2
    c.rollout.update(workers="threads", actors=1, episodes_per_actor=4, max_reply_tokens=8)
    c.engine.update(max_sequences=4, max_sequence_length=1536, pages=4 * 1536 // 16)
    c.learn.update(microbatch_rows=2, pack_length=1536, chunks_per_pack=16)
    c.warm_start.update(transcripts_per_family=8, rows_per_step=8, max_steps=2)
    c.warm_start.update(probe_every=1, probe_tasks=2)
    c.rl.update(steps=2, groups_per_step=2, group_size=2)
    c.eval.update(tasks=2, held_out_tasks=1)
    c.checkpoint.every = 1
    return c
