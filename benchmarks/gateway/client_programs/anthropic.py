"""A shell agent on Anthropic's SDK: python3 anthropic.py TASK. It asks for messages, whole and
streamed in turn."""

import subprocess
import sys

import anthropic

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TOOLS = [{"name": "bash", "description": "Runs a command.", "input_schema": SCHEMA}]


def main(task: str) -> None:
    client = anthropic.Anthropic()
    messages = [{"role": "user", "content": task}]
    for turn in range(20):
        asked = {"model": "policy", "max_tokens": 1000, "system": "Work.", "tools": TOOLS}
        if turn % 2:
            with client.messages.stream(**asked, messages=messages) as stream:
                message = stream.get_final_message()
        else:
            message = client.messages.create(**asked, messages=messages)
        messages.append({"role": "assistant", "content": message.content})
        uses = [block for block in message.content if block.type == "tool_use"]
        if not uses:
            print("".join(block.text for block in message.content if block.type == "text"))
            return
        results = []
        for use in uses:
            line = ["bash", "-c", use.input["command"]]
            seen = subprocess.run(line, capture_output=True, text=True).stdout
            results.append({"type": "tool_result", "tool_use_id": use.id, "content": seen})
        messages.append({"role": "user", "content": results})


if __name__ == "__main__":
    main(sys.argv[1])
