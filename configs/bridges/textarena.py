"""Does a small code model learn games of textarena? Expect: unknown; nothing was run yet.
ale-jax --config=configs/bridges/textarena.py --config.weights=FILE --workdir=DIR

`make textarena` installs the library into .venv-textarena. Rewards come at the end of a game.
FILE: Qwen2.5-Coder-0.5B-Instruct as a .gguf file, which has a separate output head.
Hardware: one GPU of 80 GB. Memory by `plan`: 26.2 GiB of each device.
"""

from ml_collections import ConfigDict

from ale_jax.configs import real_model


def get_config(algorithm: str = "ipa") -> ConfigDict:
    """algorithm: one of configs/algorithms.py."""
    c = real_model.qwen2_5_coder_0_5b(algorithm)
    c.name = "textarena"
    options = {"python": ".venv-textarena/bin/python"}
    families = ("Mastermind-v0-train", "TowerOfHanoi-v0-train")
    domain = {"world": "textarena", "families": families, "options": options}
    c.worlds.train = (domain | {"turns": 16},)
    c.worlds.held_out = ()
    c.eval.held_out_tasks = 0
    c.warm_start.max_steps = 0  # the games have no oracle
    return c
