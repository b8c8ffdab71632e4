"""Does a small code model learn to call functions for a user? Expect: unknown; nothing was run yet.
ale-jax --config=configs/bridges/bfcl.py --config.weights=FILE --workdir=DIR

`make bfcl` installs the library into .venv-bfcl. A task takes several turns of a user, whose
functions alone take 3,600 tokens. The categories that are held out show what is transferred.
FILE: Qwen2.5-Coder-0.5B-Instruct as a .gguf file, which has a separate output head.
Hardware: one GPU of 80 GB. Memory by `plan`: 30.4 GiB of each device.
"""

from ml_collections import ConfigDict

from ale_jax.configs import real_model


def get_config(algorithm: str = "ipa") -> ConfigDict:
    """algorithm: one of configs/algorithms.py."""
    c = real_model.qwen2_5_coder_0_5b(algorithm)
    c.name = "bfcl"
    world = {"world": "bfcl", "options": {"python": ".venv-bfcl/bin/python"}, "turns": 40}
    c.worlds.train = (world | {"families": ("multi_turn_base",)},)
    others = ("multi_turn_miss_func", "multi_turn_miss_param")
    c.worlds.held_out = (world | {"families": others},)
    c.eval.update(tasks=100, held_out_tasks=100)
    c.agent.turns = 40
    c.engine.max_sequence_length = c.learn.pack_length = 8192
    c.learn.chunks_per_pack = 40
    c.warm_start.update(transcripts_per_family=64, probe_tasks=32)
    return c
