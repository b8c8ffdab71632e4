"""Does IPA improve a pretrained code model on harbor's tasks? Expect: unknown; not run yet.
ale-jax --config=configs/bridges/harbor.py --config.weights=FILE --workdir=DIR

The three tasks of examples/harbor show the format; name the folder of your own instead.
FILE: Qwen2.5-Coder-0.5B-Instruct as a .gguf file, which has a separate output head.
Hardware: one GPU of 80 GB. Memory by `plan`: 26.2 GiB of each device.
"""

from pathlib import Path

from ml_collections import ConfigDict

from ale_jax.configs import real_model

TASKS = Path(__file__).resolve().parents[2] / "examples" / "harbor"


def get_config(algorithm: str = "ipa") -> ConfigDict:
    """algorithm: one of configs/algorithms.py."""
    c = real_model.qwen2_5_coder_0_5b(algorithm)
    c.name = "harbor"
    # A command that waits for input must not take all the time that a task gives its agent.
    tasks = {"folder": str(TASKS), "command_seconds": 60.0}
    c.worlds.train = ({"world": "harbor", "options": tasks},)
    c.worlds.held_out = ()
    c.agent.turns = 24
    c.eval.update(tasks=64, held_out_tasks=0)
    c.warm_start.max_steps = 0  # solutions are scripts, and no example of finding them
    c.engine.max_sequence_length = 4096
    c.learn.pack_length = 4096
    return c
