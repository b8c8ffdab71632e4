"""What the agent remembers from one session to the next: a text file of the project."""

from __future__ import annotations

import dataclasses

from pydantic import Field

from ale_jax.agent.assistant.tools.tool import Arguments, ToolError, ToolResult, TypedTool
from ale_jax.agent.assistant.workspace import Workspace, read_text
from ale_jax.files import write_atomically

MAX_CHARS = 8000  # all of it is in every prompt


@dataclasses.dataclass(frozen=True)
class Memory:
    """path: from the working directory."""

    workspace: Workspace
    path: str

    def read(self) -> str:
        path = self.workspace.to_read(self.path)
        return read_text(path) if path.exists() else ""

    def add(self, text: str) -> None:
        known, line = self.read(), f"- {' '.join(text.split())}\n"
        if len(known) + len(line) > MAX_CHARS:
            raise ToolError(f"{self.path} would exceed {MAX_CHARS} characters; shorten it first")
        if known and not known.endswith("\n"):
            known += "\n"
        path = self.workspace.to_write(self.path)
        try:
            write_atomically(path, [(known + line).encode("utf-8", "replace")])
        except OSError as error:
            raise ToolError(f"cannot write {self.path}: {error.strerror}") from error


class RememberArguments(Arguments):
    text: str = Field(min_length=1, max_length=1000)


@dataclasses.dataclass(frozen=True)
class RememberTool(TypedTool[RememberArguments]):
    """Not `only_reads`: what it writes is believed in all later sessions."""

    memory: Memory

    name = "remember"
    description = "Notes a fact for later sessions in this directory."
    Arguments = RememberArguments

    async def use(self, arguments: RememberArguments, call_id: str) -> ToolResult:
        self.memory.add(arguments.text)
        return ToolResult(f"noted in {self.memory.path}")
