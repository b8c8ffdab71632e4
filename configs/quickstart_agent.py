"""Does an agent's own program learn through the gateway as our loop does? Expect: within noise.
python -m ale_jax.launch --config=configs/quickstart_agent.py --workdir=runs/quickstart_agent

The quickstart, but examples/shell_agent.py plays the episodes: a program in each sandbox, which has
no network and reaches nothing but the policy's OpenAI API. Compare with configs/quickstart.py.
Hardware: two CPU cores; no accelerator.
"""

from pathlib import Path

from ml_collections import ConfigDict

from ale_jax.agent.tools import SYSTEM_PROMPT
from ale_jax.configs import quickstart

AGENT = Path(__file__).parents[1] / "examples" / "shell_agent.py"


def get_config(algorithm: str = "ipa") -> ConfigDict:
    """algorithm: one of configs/algorithms.py."""
    c = quickstart.get_config(algorithm)
    c.name = c.name.replace("quickstart", "quickstart_agent")
    words = ("python3", "-c", AGENT.read_text(), SYSTEM_PROMPT, "{instruction}")
    c.external_agent.command = words
    return c
