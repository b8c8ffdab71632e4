"""Which files the file tools may touch: those below the working directory."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from ale_jax.agent.assistant.tools.tool import ToolError

MAX_FILE_BYTES = 4 << 20


@dataclasses.dataclass(frozen=True)
class Workspace:
    """The files that tools may touch. root: the working directory. readable: further folders that
    may be read."""

    root: Path
    readable: tuple[Path, ...] = ()

    def to_read(self, path: str) -> Path:
        """Returns the file to read. ToolError for a path that leads elsewhere, also by a link."""
        return self._inside(path, (self.root, *self.readable))

    def to_write(self, path: str) -> Path:
        return self._inside(path, (self.root,))

    def shown(self, path: Path) -> str:
        resolved, root = path.resolve(), self.root.resolve()
        return str(resolved.relative_to(root)) if resolved.is_relative_to(root) else str(resolved)

    def resolved(self, path: str) -> Path:
        """Returns the file that a path leads to, from the root. ToolError for what is no path."""
        if "\0" in path:
            raise ToolError("a path cannot hold a NUL")
        try:
            # Relative to the root; an absolute path stays as it is.
            return (self.root / path).resolve()
        except (OSError, RuntimeError, ValueError) as error:  # ValueError: half a surrogate pair
            raise ToolError(f"{path!r:.200}: {error}") from error

    def _inside(self, path: str, roots: tuple[Path, ...]) -> Path:
        resolved = self.resolved(path)
        if not any(resolved.is_relative_to(root.resolve()) for root in roots):
            raise ToolError(f"{path!r:.200} is not below the working directory {self.root}")
        return resolved


def read_text(path: Path) -> str:
    """Returns the text of a file. ToolError for what is no text file of ordinary size."""
    try:
        # Without O_NONBLOCK, to open a named pipe waits until somebody writes to it.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ToolError(f"cannot read: {error.strerror}") from error
    if content is None or len(content) > MAX_FILE_BYTES:
        raise ToolError(f"not a file of at most {MAX_FILE_BYTES} bytes; read parts of it with bash")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise ToolError("not a text file in UTF-8") from None
    if "\0" in text:
        raise ToolError("not a text file: it holds a NUL")
    return text
