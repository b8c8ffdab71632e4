"""A shell agent on OpenAI's Agents SDK, which asks for responses: python3 agents.py TASK."""

import subprocess
import sys

from agents import Agent, Runner, function_tool, set_tracing_disabled


@function_tool
def bash(command: str) -> str:
    """Runs a command."""
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True).stdout


def main(task: str) -> None:
    set_tracing_disabled(True)
    agent = Agent(name="shell", instructions="Work.", model="policy", tools=[bash])
    print(Runner.run_sync(agent, task, max_turns=20).final_output)


if __name__ == "__main__":
    main(sys.argv[1])
