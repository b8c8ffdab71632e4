"""Do three sets of reasoning-gym teach a small code model? Expect: unknown; nothing was run yet.
ale-jax --config=configs/bridges/reasoning_gym.py --config.weights=FILE --workdir=DIR

`make gem` installs the library into .venv-gem. Each episode is one reply.
FILE: Qwen2.5-Coder-0.5B-Instruct as a .gguf file, which has a separate output head.
Hardware: one GPU of 80 GB. Memory by `plan`: 26.2 GiB of each device.
"""

from ml_collections import ConfigDict

from ale_jax.configs import real_model


def get_config(algorithm: str = "ipa") -> ConfigDict:
    """algorithm: one of configs/algorithms.py."""
    c = real_model.qwen2_5_coder_0_5b(algorithm)
    c.name = "reasoning_gym"
    options = {"python": ".venv-gem/bin/python", "tag": "answer"}
    families = ("leg_counting", "chain_sum", "spell_backward")
    domain = {"world": "reasoning_gym", "families": families, "options": options}
    c.worlds.train = (domain | {"turns": 1, "reply_tokens": 512},)
    c.worlds.held_out = ()
    c.eval.held_out_tasks = 0
    c.warm_start.max_steps = 0  # the model answers already
    return c
