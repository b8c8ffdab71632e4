"""A shell agent on litellm: python3 litellm.py TASK."""

import json
import subprocess
import sys

import litellm

PARAMETERS = {
    "type": "object",
    "properties": {"command": {"type": "string"}},
    "required": ["command"],
}
BASH = {"name": "bash", "description": "Runs a command.", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": BASH}]


def main(task: str) -> None:
    messages = [{"role": "system", "content": "Work."}, {"role": "user", "content": task}]
    for _ in range(20):
        found = litellm.completion(model="openai/policy", messages=messages, tools=TOOLS)
        message = found.choices[0].message
        messages.append(message.model_dump())
        if not message.tool_calls:
            print(message.content)
            return
        for call in message.tool_calls:
            line = ["bash", "-c", json.loads(call.function.arguments)["command"]]
            seen = subprocess.run(line, capture_output=True, text=True).stdout
            messages.append({"role": "tool", "tool_call_id": call.id, "content": seen})


if __name__ == "__main__":
    main(sys.argv[1])
