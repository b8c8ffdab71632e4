"""Does our own agent, `ale-agent`, learn where it works? Expect: unknown; not run to its end.
python -m ale_jax.launch --config=configs/quickstart_ale_agent.py --workdir=runs/ale_agent

The quickstart's tasks, but `ale-agent` plays them: started in each sandbox, which has no network,
with the settings of examples/ale_agent.toml. It also plays the demonstrations of the warm start.
On trail, count and lookup alone, with 256 demonstrations of each, the warm start took 232 updates,
and 20 steps led from 21 of 60 unseen tasks to 30.
Hardware: two CPU cores; no accelerator; bubblewrap.
"""

from pathlib import Path

from ml_collections import ConfigDict

from ale_jax.configs import quickstart
from ale_jax.sandbox.agent_program import PROGRAM

SETTINGS = Path(__file__).parents[1] / "examples" / "ale_agent.toml"


def get_config(algorithm: str = "ipa") -> ConfigDict:
    """algorithm: one of configs/algorithms.py."""
    c = quickstart.get_config(algorithm)
    c.name = c.name.replace("quickstart", "quickstart_ale_agent")

    options = ("--output=text", "--mode=auto", "--state=/tmp/ale-agent")
    c.external_agent.command = (PROGRAM, "run", *options, "--", "{instruction}")
    c.external_agent.env = (("ALE_AGENT_CONFIG", SETTINGS.read_text()),)
    c.external_agent.update(demonstrates=True, seconds=60.0)
    c.sandbox.update(ale_agent=True, memory_mb=512)
    c.rollout.runtime = "bubblewrap"

    # The schemas of its tools are in every prompt, and their words in the vocabulary. Three
    # episodes fit into a row, as in the quickstart.
    c.tokenizer.vocab_size = 896
    c.engine.update(max_sequence_length=640, pages=20 * 640 // 16)
    c.learn.pack_length = 1408
    # An episode starts a program, so there are fewer of them than in the quickstart.
    c.rl.update(steps=40, groups_per_step=8)
    c.eval.update(tasks=120, held_out_tasks=32)
    return c
