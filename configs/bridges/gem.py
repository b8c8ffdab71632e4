"""Does a small code model learn gem's number games? Expect: unknown; nothing was run yet.
ale-jax --config=configs/bridges/gem.py --config.weights=FILE --workdir=DIR

`make gem` installs the library into .venv-gem. A game takes several turns.
FILE: Qwen2.5-Coder-0.5B-Instruct as a .gguf file, which has a separate output head.
Hardware: one GPU of 80 GB. Memory by `plan`: 26.2 GiB of each device.
"""

from ml_collections import ConfigDict

from ale_jax.configs import real_model


def get_config(algorithm: str = "ipa") -> ConfigDict:
    """algorithm: one of configs/algorithms.py."""
    c = real_model.qwen2_5_coder_0_5b(algorithm)
    c.name = "gem"
    options = {"python": ".venv-gem/bin/python"}
    families = ("game:GuessTheNumber-v0-easy", "game:Mastermind-v0-easy")
    c.worlds.train = ({"world": "gem", "families": families, "options": options, "turns": 12},)
    c.worlds.held_out = ()
    c.eval.held_out_tasks = 0
    c.warm_start.max_steps = 0  # the games have no oracle
    return c
