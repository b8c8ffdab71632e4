"""A small agent of which every reply is a call of one of its tools. It knows an API, and nothing of
this project:

    OPENAI_BASE_URL=... OPENAI_API_KEY=... python3 tool_agent.py "SYSTEM PROMPT" "TASK"

It sends the schemas of its tools and requires a call: even a model that has never seen one writes
nothing else.
"""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request

COMMAND_S = 10.0
KEPT = 8192  # characters of a command's output


def tool(name: str, argument: str) -> dict:
    schema = {
        "type": "object",
        "properties": {argument: {"type": "string", "maxLength": 200}},
        "required": [argument],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [tool("bash", "command"), tool("finish", "answer")]


def main(system: str, task: str) -> None:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": task}]
    while (reply := ask(messages)) is not None:
        messages.append(reply)
        if not reply.get("tool_calls"):  # it was cut off at the length of a reply
            messages.append({"role": "user", "content": "error: the call has no end"})
            continue
        (call,) = reply["tool_calls"]
        arguments = json.loads(call["function"]["arguments"])
        if call["function"]["name"] == "finish":
            print(arguments["answer"])
            return
        seen = run(arguments["command"])
        messages.append({"role": "tool", "content": seen, "tool_call_id": call["id"]})


def ask(messages: list[dict]) -> dict | None:
    """The model's reply; None if it will not reply any more."""
    asked = {"model": "policy", "messages": messages, "tools": TOOLS, "tool_choice": "required"}
    request = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        json.dumps(asked | {"parallel_tool_calls": False}).encode(),
        {
            "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
            "Content-Type": "application/json",
        },
    )
    try:
        with urllib.request.urlopen(request) as response:
            return json.load(response)["choices"][0]["message"]
    except urllib.error.HTTPError as error:
        if error.code < 500:  # its context is full, or it has had all its turns
            return None
        raise


def run(command: str) -> str:
    """What the command wrote, and how it ended if not well."""
    try:
        done = subprocess.run(
            ["bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_S,
        )
    except subprocess.TimeoutExpired:
        return "[timed out]"
    except ValueError as error:  # a zero byte, which no command line can have
        return f"error: {error}"
    text = done.stdout.decode(errors="replace")[:KEPT].rstrip("\n") or "(no output)"
    return text if done.returncode == 0 else f"{text}\n[exit {done.returncode}]"


if __name__ == "__main__":
    main(*sys.argv[1:3])
