"""Which algorithm improves a small policy most? Expect: the weight of failures decides.
python -m ale_jax.launch --config=configs/experiments/shell.py --workdir=runs/shell

The arms of `python -m benchmarks.experiments` for algorithms, ablations and staleness are this
config with overrides. It has three families of one to five reading commands, and a dense policy
small enough for eighteen runs in three hours. Hardware: two CPU cores; no accelerator.
"""

from ml_collections import ConfigDict

from ale_jax.configs import quickstart


def get_config(algorithm: str = "ipa") -> ConfigDict:
    c = quickstart.get_config(algorithm)
    c.name = "shell"
    c.model.update(width=96, num_heads=3, num_kv_heads=3, mlp_width=288)
    c.model.update(num_experts=0, experts_per_token=0, expert_width=0, dense_layers=())
    c.worlds.update(train_families=("lane", "log", "lookup"), held_out_families=())
    c.agent.turns = 8
    c.warm_start.update(transcripts_per_family=192, max_steps=300, target_success=0.3)
    c.rl.update(steps=60, groups_per_step=8, group_size=8)
    c.rl_optimizer.decay_steps = 60
    c.eval.held_out_tasks = 0
    c.checkpoint.every = 30
    return c
