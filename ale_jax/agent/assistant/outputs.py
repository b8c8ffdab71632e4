"""Long outputs of tools: the model reads their beginning and end, and a file holds the rest."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

from ale_jax.agent.assistant.clipping import clip, encodable
from ale_jax.files import write_atomically


@dataclasses.dataclass(frozen=True)
class Outputs:
    """folder: of the session. max_chars: of an output, as the model reads it."""

    folder: Path
    max_chars: int

    def keep(self, text: str) -> Path:
        """A file that holds the text. Equal texts share one."""
        content = encodable(text).encode()
        path = self.folder / f"{hashlib.sha256(content).hexdigest()[:16]}.txt"
        if not path.exists():
            write_atomically(path, [content])
        return path

    def clipped(self, text: str) -> tuple[str, str]:
        """The text as the model reads it, and the path of the whole; empty if it is not long."""
        text = encodable(text)
        if len(text) <= self.max_chars:
            return text, ""
        path = self.keep(text)
        return f"{clip(text, self.max_chars)}\n[all of it: {path}]", str(path)
