"""Texts that a model, a tool or a file wrote: how much of them the model reads, where the rest is
kept, and what may be printed."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

from ale_jax.files import write_atomically


def clip(text: str, limit: int) -> str:
    """Returns at most `limit` characters of the head and the tail together, with a note between
    them of how many were left out. Errors are mostly at the end, and what was run is at the
    beginning."""
    if len(text) <= limit:
        return text
    head, tail = limit - limit // 2, limit // 2
    left_out = len(text) - limit
    return f"{text[:head]}\n[... {left_out} characters left out ...]\n{text[len(text) - tail :]}"


def printable(text: str) -> str:
    """Replaces what controls a terminal or reorders its text. Newlines and tabs stay."""
    return "".join(
        sign if sign in "\n\t" or sign.isprintable() else "\N{REPLACEMENT CHARACTER}"
        for sign in text
    )


def encodable(text: str) -> str:
    """Replaces lone surrogates, which JSON can hold and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()


def encodable_json(value: Any) -> Any:
    """Replaces lone surrogates in all texts of a JSON value."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {encodable(key): encodable_json(each) for key, each in value.items()}
    return [encodable_json(each) for each in value] if isinstance(value, list) else value


@dataclasses.dataclass(frozen=True)
class Outputs:
    """Long outputs of tools: the model reads their beginning and end, and a file holds the rest.

    folder: of the session. max_chars: of an output, as the model reads it.
    """

    folder: Path
    max_chars: int

    def keep(self, text: str) -> Path:
        """Returns a file that holds the text. Equal texts share one."""
        content = encodable(text).encode()
        path = self.folder / f"{hashlib.sha256(content).hexdigest()[:16]}.txt"
        if not path.exists():
            write_atomically(path, [content])
        return path

    def clipped(self, text: str) -> tuple[str, str]:
        """Returns the text as the model reads it, and the path of the whole ("" if it is not
        long)."""
        text = encodable(text)
        if len(text) <= self.max_chars:
            return text, ""
        path = self.keep(text)
        return f"{clip(text, self.max_chars)}\n[all of it: {path}]", str(path)
