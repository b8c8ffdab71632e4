"""A small agent that is a program of its own. It knows an API, and nothing of this project:

    OPENAI_BASE_URL=... OPENAI_API_KEY=... python3 shell_agent.py "SYSTEM PROMPT" "TASK"

It runs the commands that the model calls bash with, and prints the answer that it finishes with.
"""

import base64
import json
import os
import re
import select
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid

CALL = re.compile(r"<tool_call>\s*(\{.*\})\s*</tool_call>\s*\Z", re.DOTALL)
COMMAND_S = 10.0
KEPT = 8192  # bytes of a command's output


def main(system: str, task: str) -> None:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": task}]
    shell = Shell()
    while (text := ask(messages)) is not None:
        name, arguments = call_in(text)
        if name == "finish":
            print(arguments.get("answer", ""))
            return
        seen = shell.run(arguments["command"]) if name == "bash" else f"error: {name}"
        messages += [
            {"role": "assistant", "content": text},
            {"role": "tool", "content": seen, "tool_call_id": "000000000"},
        ]


def ask(messages: list[dict[str, str]]) -> str | None:
    """The model's reply; None if it will not reply any more."""
    request = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        json.dumps({"model": "policy", "messages": messages, "tool_choice": "none"}).encode(),
        {
            "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
            "Content-Type": "application/json",
        },
    )
    try:
        with urllib.request.urlopen(request) as response:
            return json.load(response)["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        if error.code < 500:  # its context is full, or it has had all its turns
            return None
        raise


def call_in(text: str) -> tuple[str, dict[str, str]]:
    """Name and arguments of the call in a reply; what is wrong, and {}, if there is none."""
    if "<tool_call>" not in text:
        return "no <tool_call> in the reply", {}
    found = CALL.search(text)
    if not found:
        return "the reply must end with one <tool_call>", {}
    try:
        call = json.loads(found[1])
        name, arguments = call["name"], call["arguments"]
        wanted = {"bash": "command", "finish": "answer"}[name]
        return name, {wanted: str(arguments[wanted])}
    except (ValueError, KeyError, TypeError) as error:
        return f"not a call: {error!r}", {}


class Shell:
    """A bash that keeps its directory and variables from one command to the next."""

    def __init__(self) -> None:
        self._bash = subprocess.Popen(
            ["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def run(self, command: str) -> str:
        """What the command wrote, and how it ended if not well."""
        mark = uuid.uuid4().hex
        code = base64.b64encode(command.encode()).decode()
        line = f'eval "$(echo {code} | base64 -d)" < /dev/null; echo {mark} $?\n'
        self._bash.stdin.write(line.encode())
        self._bash.stdin.flush()
        output, status = self._read_until(mark.encode())
        text = output[:KEPT].decode(errors="replace").rstrip("\n") or "(no output)"
        return f"{text}\n[{status}]" if status != "exit 0" else text

    def _read_until(self, mark: bytes) -> tuple[bytes, str]:
        data, deadline = b"", time.monotonic() + COMMAND_S
        while (left := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select([self._bash.stdout], [], [], left)
            if not ready:
                break
            more = os.read(self._bash.stdout.fileno(), 1 << 16)
            data += more
            if not more:  # the command has ended the shell
                self.__init__()
                return data, "the shell ended"
            output, _, end = data.partition(mark)
            status, ended, _ = end.partition(b"\n")  # behind it, what runs in the background writes
            if ended:
                return output, f"exit {int(status)}"
        self._bash.kill()
        self.__init__()
        return data, "timed out"


if __name__ == "__main__":
    main(*sys.argv[1:3])
