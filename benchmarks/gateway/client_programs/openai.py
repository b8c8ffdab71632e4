"""A shell agent on OpenAI's SDK: python3 openai.py TASK. It asks for chat completions, whole
and streamed in turn."""

import json
import subprocess
import sys

import openai

PARAMETERS = {
    "type": "object",
    "properties": {"command": {"type": "string"}},
    "required": ["command"],
}
BASH = {"name": "bash", "description": "Runs a command.", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": BASH}]


def run(arguments: str) -> str:
    line = ["bash", "-c", json.loads(arguments)["command"]]
    return subprocess.run(line, capture_output=True, text=True).stdout


def main(task: str) -> None:
    client = openai.OpenAI()
    messages = [{"role": "system", "content": "Work."}, {"role": "user", "content": task}]
    for turn in range(20):
        asked = {"model": "policy", "messages": messages, "tools": TOOLS}
        if turn % 2:
            with client.chat.completions.stream(**asked) as stream:
                completion = stream.get_final_completion()
        else:
            completion = client.chat.completions.create(**asked)
        message = completion.choices[0].message
        messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
        for call in messages[-1].get("tool_calls", []):
            call["function"].pop("parsed_arguments", None)
        if not message.tool_calls:
            print(message.content)
            return
        for call in message.tool_calls:
            seen = run(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": seen})


if __name__ == "__main__":
    main(sys.argv[1])
