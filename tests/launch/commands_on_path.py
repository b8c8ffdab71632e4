"""Commands that stand for others: first on PATH, they record how they were called."""

import json
import os
import stat
import sys
from pathlib import Path

RECORDER = """#!{python}
import json, os, pathlib, subprocess, sys
here = pathlib.Path({folder!r})
name = pathlib.Path(sys.argv[0]).name
with open(here / "calls.jsonl", "a") as file:
    file.write(json.dumps([name, *sys.argv[1:]]) + "\\n")
arguments = sys.argv[1:]
{body}
"""


class CommandsOnPath:
    """A folder for PATH."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir()

    def add(self, name: str, body: str = "") -> None:
        """A command `name`, which records its call and then does `body`: Python, which has the
        folder as `here`, and the call's `arguments`."""
        path = self.folder / name
        path.write_text(RECORDER.format(python=sys.executable, folder=str(self.folder), body=body))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def calls(self) -> list[list[str]]:
        """Those so far: each the command's name and its arguments."""
        file = self.folder / "calls.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"PATH": f"{self.folder}:{os.environ['PATH']}"}
