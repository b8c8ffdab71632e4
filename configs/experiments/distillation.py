"""Does a smaller student learn from a teacher alone? Expect: from 38 to 60 % in 2,176 episodes.
python -m ale_jax.launch --config=configs/experiments/distillation.py --workdir=runs/student

On-policy distillation: the student plays, and learns nothing but the divergence of its replies from
a teacher's. The teacher is `runs/teacher`, which `ale-jax export` has made of a run of the
quickstart (95 %), and the student has half its width. No attempt needs to succeed, or to be
compared with others.
Hardware: two CPU cores; no accelerator.
"""

from ml_collections import ConfigDict

from ale_jax.configs import quickstart

TEACHER = "runs/teacher"


def get_config(algorithm: str = "rloo") -> ConfigDict:
    c = quickstart.get_config(algorithm)
    c.name = c.algo.name = "distillation"
    c.teacher.weights = c.tokenizer.path = TEACHER
    c.algo.advantage.mean = "none"
    c.algo.loss.update(kind="none", negative_weight=1.0)
    c.algo.loss.update(kl_weight=1.0, kl_estimator="reverse", kl_top=64)
    c.rl.update(steps=34, groups_per_step=64, group_size=1)
    c.model.update(width=64, num_heads=2, num_kv_heads=1, mlp_width=192, expert_width=96)
    return c
