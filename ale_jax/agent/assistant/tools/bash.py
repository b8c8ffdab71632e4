"""The tool that runs commands in a shell which keeps its state."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from ale_jax.agent.assistant.shell import Shell, ShellOutput
from ale_jax.agent.assistant.tools.tool import Arguments, ToolError, ToolResult, TypedTool

KEPT_CHARS = 1 << 20  # of an output's beginning, and of its end


class BashArguments(Arguments):
    command: str = Field(min_length=1, max_length=1 << 17)


class BashTool(TypedTool[BashArguments]):
    name = "bash"
    description = "Runs a command in a shell that keeps its directory and variables."
    Arguments = BashArguments

    def __init__(self, folder: Path, seconds: float):
        self._shell, self._seconds = Shell(folder, KEPT_CHARS), seconds

    async def use(self, arguments: BashArguments, call_id: str) -> ToolResult:
        if any(sign == "\0" or "\ud800" <= sign <= "\udfff" for sign in arguments.command):
            raise ToolError("the command holds a character that no shell can take")
        output = await self._shell.run(arguments.command, self._seconds)
        return ToolResult(self._told(output), is_error=output.exit_code != 0)

    async def close(self) -> None:
        await self._shell.close()

    def _told(self, output: ShellOutput) -> str:
        notes = []
        if output.timed_out:
            notes.append(f"[killed after {self._seconds:g} s; the shell was started anew]")
        elif output.shell_ended:
            notes.append(f"[the shell ended with exit code {output.exit_code}; it starts anew]")
        elif output.exit_code:
            notes.append(f"[exit code {output.exit_code}]")
        text = output.text.strip("\n")
        return "\n".join([*([text] if text else []), *notes]) or "[no output]"
