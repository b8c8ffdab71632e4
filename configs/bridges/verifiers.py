"""Does a small code model learn a taskset of verifiers? Expect: unknown; nothing was run yet.
ale-jax --config=configs/bridges/verifiers.py --config.weights=FILE --workdir=DIR

`make verifiers` installs the library into .venv-verifiers. my_sums stands for a taskset of one's
own, a module in the working directory; the library starts its chat loop for each episode.
FILE: Qwen2.5-Coder-0.5B-Instruct as a .gguf file, which has a separate output head.
Hardware: one GPU of 80 GB. Memory by `plan`: 26.2 GiB of each device.
"""

from ml_collections import ConfigDict

from ale_jax.configs import real_model


def get_config(algorithm: str = "ipa") -> ConfigDict:
    """algorithm: one of configs/algorithms.py."""
    c = real_model.qwen2_5_coder_0_5b(algorithm)
    c.name = "verifiers"
    options = {"taskset": "my_sums", "python": ".venv-verifiers/bin/python"}
    c.worlds.train = ({"world": "verifiers", "options": options},)
    c.worlds.held_out = ()
    c.eval.held_out_tasks = 0
    c.warm_start.max_steps = 0  # tasksets have no oracle
    return c
