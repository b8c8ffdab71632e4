"""Searches a tree of files. A program of its own, for an expression of a model's may take forever
and can only be stopped with its process. Needs nothing but the standard library."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import sys
from collections.abc import Iterator

SKIPPED = {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv"}
MAX_BYTES = 4 << 20  # of a file
MAX_LINE = 300  # characters
MAX_FOUND = 200


def files_below(root: str) -> Iterator[str]:
    """Yields the files in and below a folder, without SKIPPED folders; the file itself if it is
    one."""
    if os.path.isfile(root):
        yield root
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in SKIPPED)
        for name in sorted(names):
            yield os.path.join(folder, name)


def lines_in(text: str) -> list[str]:
    """Returns the lines of a text, numbered as by `grep -n` and the edit tool, which
    `str.splitlines` does not: only \\n ends a line. The \\r of \\r\\n is left out."""
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()  # what is behind the last \\n is no line
    return [line.removesuffix("\r") for line in lines]


def lines_of(path: str) -> Iterator[tuple[int, str]]:
    """Yields the numbered lines of a file; none of what is no text, no ordinary file, or not
    readable for us."""
    try:
        if not os.path.isfile(path) or os.path.islink(path) or os.path.getsize(path) > MAX_BYTES:
            return
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES)
    except OSError:
        return
    if b"\0" not in content:
        yield from enumerate(lines_in(content.decode(errors="replace")), 1)


def found(asked: dict[str, str]) -> Iterator[str]:
    """Yields the lines that were asked for: paths, or matching lines with path and number."""
    root, base = asked["root"], asked["base"]
    expression = re.compile(asked["pattern"]) if asked["pattern"] else None
    for path in files_below(root):
        shown = os.path.relpath(path, base)
        if not fnmatch.fnmatch(shown, asked["name"]) and not fnmatch.fnmatch(
            os.path.basename(path), asked["name"]
        ):
            continue
        if expression is None:
            yield shown
            continue
        for number, line in lines_of(path):
            if expression.search(line):
                yield f"{shown}:{number}:{line[:MAX_LINE]}"


def main() -> None:
    lines: list[str] = []
    for line in found(json.load(sys.stdin)):
        if len(lines) == MAX_FOUND:
            lines.append(f"[only the first {MAX_FOUND}; search for less]")
            break
        lines.append(line)
    sys.stdout.write("\n".join(lines).encode("utf-8", "replace").decode())


if __name__ == "__main__":
    main()
