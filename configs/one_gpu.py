"""Does a pretrained model of yours improve on one GPU? Expect: a difference above 0 by `compare`.
python -m ale_jax.launch --config=configs/one_gpu.py --config.weights=MODEL --workdir=runs/one

MODEL: such as Qwen/Qwen3-0.6B or Qwen/Qwen3-1.7B. The run plays 480 unseen tasks, trains adapters
for twelve steps without a warm start, and plays the same tasks again. What that brought, with its
interval:

    ale-jax compare runs/one/evals/warm_start runs/one/evals/final

It has not run yet. By the run of smollm2_135m.py, four to eight minutes on an H100 are estimated
for these two; --config.compilation_cache=DIR saves a second run the minutes of compilation, and the
same command goes on after an interruption. Who earns nothing at first learns nothing: see by
`ale-jax eval --config=one_gpu --policy=hf:MODEL --limit=60 --out=DIR`, and choose other families.
Templates without a variable enable_thinking need --config.tokenizer.chat_template_kwargs="()".
Hardware: one GPU of 80 GB. Memory by `plan`: 43.4 GiB with Qwen3-0.6B, 55.7 GiB with 1.7B.
"""

from ml_collections import ConfigDict

from ale_jax.config.run import RunConfig
from ale_jax.configs import real_model


def get_config(algorithm: str = "ipa") -> ConfigDict:
    """algorithm: one of configs/algorithms.py."""
    c = real_model.on_shell_tasks(algorithm)
    c.name = "one_gpu"
    c.model = ConfigDict(RunConfig().to_json()["model"])  # the weights tell
    c.tokenizer.chat_template_kwargs = (("enable_thinking", False),)
    # Checkpoints and what is published are small, so that they take none of the eight minutes.
    c.lora.update(rank=32, alpha=64.0, targets=("all-linear",))
    c.engine.update(max_sequences=96, max_sequence_length=2048, pages=96 * 2048 // 64)
    c.rollout.update(actors=6, max_reply_tokens=160)
    c.agent.turns = 10
    c.worlds.train = (
        {
            "world": "shell",
            "families": ("trail", "count", "script", "log", "lookup", "sort"),
        },
    )
    c.worlds.held_out = ()
    c.warm_start.max_steps = 0
    c.rl.steps = 12
    c.rl_optimizer.update(learning_rate=1e-4, warmup_ratio=0.1, decay_ratio=0.0)
    c.eval.update(tasks=480, held_out_tasks=0)
    c.checkpoint.every = 4
    return c
