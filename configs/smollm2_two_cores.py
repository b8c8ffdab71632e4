"""Does a pretrained model learn shell tasks on two CPU cores? Expect: from 45 to 67 % in 12 steps.
python -m ale_jax.launch --config=configs/smollm2_two_cores.py --config.weights=FILE --workdir=DIR

FILE: SmolLM2-135M-Instruct, as a .gguf file or a transformers folder. Without a warm start it calls
no tool at all: until about a third of unseen tasks are solved, it learns the format from oracle
transcripts, and then from its own attempts. What these brought on the 480 evaluation tasks, with
its interval:

    ale-jax compare DIR/evals/warm_start DIR/evals/final

The same command goes on after an interruption. The figures are means of three seeds, which share a
warm start, with 4-bit weights (Q4_1); docs/benchmarks.md has each with its interval.
Hardware: two CPU cores, 8 GB of memory; about an hour by its parts: 11 minutes of warm start, 12
for each evaluation, 100 s a step.
"""

from ml_collections import ConfigDict

from ale_jax.config.run import RunConfig
from ale_jax.configs import real_model


def get_config(algorithm: str = "ipa") -> ConfigDict:
    """algorithm: one of configs/algorithms.py."""
    c = real_model.on_shell_tasks(algorithm)
    c.name = "smollm2_two_cores"
    c.model = ConfigDict(RunConfig().to_json()["model"])  # the weights tell
    c.hardware.update(chip="", devices=0)
    # With adapters a pass computes no gradients of weights, which are a third of its products.
    c.lora.update(rank=16, alpha=32.0, targets=("all-linear",))
    c.engine.update(max_sequences=32, max_sequence_length=512, decode_steps=8)
    c.engine.update(page_tokens=16, pages=32 * 512 // 16)
    # Results of commands are 25 to 60 tokens, with what a template writes around them. No longer
    # chunks, since one is computed whole even where most of it is a prompt that others share.
    c.engine.update(prefill_tokens=(32, 64), prefill_rows=1, prefill_budget=512)
    c.rollout.update(actors=1, episodes_per_actor=32, max_reply_tokens=48)
    c.agent.turns = 6
    c.worlds.train = ({"world": "shell", "families": ("count", "log", "lookup", "sort")},)
    c.worlds.held_out = ()
    c.learn.update(compute_dtype="float32", remat="none", microbatch_rows=1, pack_length=1024)
    # In float32 engine and learner agree to 1e-6, so that a pass of the learner tells nothing new.
    c.algo.old_logp = "sampler"
    # With weight 1, failures taught it within four steps never to finish, and what it solved fell
    # from 38 to 12 %.
    c.algo.loss.negative_weight = 0.1
    c.warm_start.update(transcripts_per_family=64, max_steps=30, rows_per_step=4, probe_tasks=24)
    c.warm_start.target_success = 0.3
    c.warm_start_optimizer.update(learning_rate=1e-3, warmup_ratio=0.1)
    c.rl.update(steps=12, groups_per_step=4, group_size=8, alpha=1.0)
    c.rl_optimizer.update(learning_rate=3e-4, warmup_ratio=0.1, decay_ratio=0.0)
    c.eval.update(tasks=480, held_out_tasks=0)
    c.checkpoint.every = 2
    return c
