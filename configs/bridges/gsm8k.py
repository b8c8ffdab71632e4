"""Does a small code model learn to answer GSM8K's questions? Expect: unknown; nothing was run yet.
ale-jax --config=configs/bridges/gsm8k.py --config.weights=FILE --workdir=DIR

Each episode is one reply. The questions are those of the folder gsm8k/main, as Hugging Face has it,
below the working directory: the split train is trained on, and test is evaluated.
FILE: Qwen2.5-Coder-0.5B-Instruct as a .gguf file, which has a separate output head.
Hardware: one GPU of 80 GB. Memory by `plan`: 26.2 GiB of each device.
"""

from ml_collections import ConfigDict

from ale_jax.configs import real_model


def get_config(algorithm: str = "ipa") -> ConfigDict:
    """algorithm: one of configs/algorithms.py."""
    c = real_model.qwen2_5_coder_0_5b(algorithm)
    c.name = "gsm8k"
    prompt = "{question}\n\nReason step by step, then write the number after ####."
    options = {"path": "gsm8k/main", "prompt": prompt, "answer": "answer", "after": "####"}
    options |= {"check": "number", "eval_split": "test"}
    c.worlds.train = ({"world": "rows", "options": options, "turns": 1, "reply_tokens": 512},)
    c.worlds.held_out = ()
    c.eval.held_out_tasks = 0
    c.warm_start.max_steps = 0  # the model answers already
    return c
