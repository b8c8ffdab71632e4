"""A shell agent on pydantic-ai: python3 pydantic_ai_agent.py TASK. See docs/agents.md."""

import subprocess
import sys

from pydantic_ai import Agent

agent = Agent("openai-chat:policy")


@agent.tool_plain
def bash(command: str) -> str:
    """Runs a command."""
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True).stdout


if __name__ == "__main__":
    print(agent.run_sync(sys.argv[1]).output)
