"""The environment that commands of the model's get: ours, without the endpoint's key."""

from __future__ import annotations

import os

KEY = "OPENAI_API_KEY"


def environment_of_tools() -> dict[str, str]:
    """So that a command cannot read the key, and spend or publish it."""
    return {name: value for name, value in os.environ.items() if name != KEY}
