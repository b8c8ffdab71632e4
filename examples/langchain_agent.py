"""A shell agent on langchain: python3 langchain_agent.py TASK. See docs/agents.md."""

import subprocess
import sys

from langchain.agents import create_agent


def bash(command: str) -> str:
    """Runs a command."""
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True).stdout


if __name__ == "__main__":
    agent = create_agent("openai:policy", tools=[bash])
    found = agent.invoke({"messages": [{"role": "user", "content": sys.argv[1]}]})
    print(found["messages"][-1].content)
