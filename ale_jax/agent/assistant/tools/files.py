"""Reading and changing text files below the working directory."""

from __future__ import annotations

import dataclasses
from itertools import islice

from pydantic import Field

from ale_jax.agent.assistant.clipping import clip
from ale_jax.agent.assistant.tools.search_worker import lines_in
from ale_jax.agent.assistant.tools.tool import Arguments, ToolError, ToolResult, TypedTool
from ale_jax.agent.assistant.workspace import MAX_FILE_BYTES, Workspace, read_text
from ale_jax.files import write_atomically

MAX_LINE_CHARS = 2000
DEFAULT_LINES = 1000


class ReadArguments(Arguments):
    path: str
    offset: int = Field(1, ge=1, description="first line")
    limit: int = Field(DEFAULT_LINES, ge=1, description="number of lines")


@dataclasses.dataclass(frozen=True)
class ReadTool(TypedTool[ReadArguments]):
    workspace: Workspace

    name = "read"
    description = "Reads a text file; each line is shown after its number."
    only_reads = True
    Arguments = ReadArguments

    async def use(self, arguments: ReadArguments, call_id: str) -> ToolResult:
        lines = lines_in(read_text(self.workspace.to_read(arguments.path)))
        start = arguments.offset - 1
        if start >= len(lines) and start > 0:
            raise ToolError(f"offset {arguments.offset}: the file has {len(lines)} lines")
        chosen = islice(enumerate(lines, 1), start, start + arguments.limit)
        shown = [f"{number}\t{clip(line, MAX_LINE_CHARS)}" for number, line in chosen]
        left = len(lines) - start - len(shown)
        note = [f"[{left} more lines]"] if left > 0 else []
        return ToolResult("\n".join([*shown, *note]) or "[the file is empty]")


class WriteArguments(Arguments):
    path: str
    content: str


@dataclasses.dataclass(frozen=True)
class WriteTool(TypedTool[WriteArguments]):
    workspace: Workspace

    name = "write"
    description = "Writes a text file, or replaces all of it. Makes missing folders."
    Arguments = WriteArguments

    async def use(self, arguments: WriteArguments, call_id: str) -> ToolResult:
        path = self.workspace.to_write(arguments.path)
        size = _write(path, arguments.content)
        return ToolResult(f"wrote {size} bytes to {self.workspace.shown(path)}")


class EditArguments(Arguments):
    path: str
    old: str = Field(min_length=1, description="text that occurs exactly once")
    new: str


@dataclasses.dataclass(frozen=True)
class EditTool(TypedTool[EditArguments]):
    workspace: Workspace

    name = "edit"
    description = "Replaces the only occurrence of a text in a file."
    Arguments = EditArguments

    async def use(self, arguments: EditArguments, call_id: str) -> ToolResult:
        path = self.workspace.to_write(arguments.path)
        before = read_text(path)
        count = before.count(arguments.old)
        if count != 1:
            raise ToolError(
                f"old occurs {count} times, not once; "
                + ("add lines around it" if count else "read the file again")
            )
        _write(path, before.replace(arguments.old, arguments.new))
        line = before[: before.index(arguments.old)].count("\n") + 1
        return ToolResult(f"changed {self.workspace.shown(path)} at line {line}")


def _write(path, text: str) -> int:
    """Returns the number of bytes. Keeps the mode of a file that is replaced."""
    try:
        content = text.encode()
    except UnicodeEncodeError:
        raise ToolError("the text holds a lone surrogate, which no file can") from None
    if len(content) > MAX_FILE_BYTES:
        raise ToolError(f"{len(content)} bytes; at most {MAX_FILE_BYTES} are written")
    try:
        mode = path.stat().st_mode & 0o777 if path.exists() else None
        write_atomically(path, [content])
        if mode is not None:
            path.chmod(mode)
    except OSError as error:
        raise ToolError(f"cannot write: {error.strerror}") from error
    return len(content)
