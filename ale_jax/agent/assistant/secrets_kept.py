"""The environment that commands of the model's get: ours, without the endpoint's key."""

from __future__ import annotations

import os

KEY, CONFIG = "OPENAI_API_KEY", "ALE_AGENT_CONFIG"
# The config may hold keys of MCP servers.
LEFT_OUT = (KEY, "ANTHROPIC_API_KEY", CONFIG)


def environment_of_tools() -> dict[str, str]:
    """Without LEFT_OUT, nor any other variable whose value is the key, so that a command does not
    print the key or pass it on by accident. This stops no command that looks for the key: it runs
    as our user, and can read /proc/PID/environ of this process and of those that started it."""
    key = os.environ.get(KEY) or None  # an empty key must not match each empty variable
    return {
        name: value for name, value in os.environ.items() if name not in LEFT_OUT and value != key
    }
