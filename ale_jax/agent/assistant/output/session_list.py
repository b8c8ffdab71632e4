"""The sessions as a table for people."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ale_jax.agent.assistant.clipping import printable
from ale_jax.agent.assistant.sessions import SessionInfo


def show_sessions(sessions: Iterable[SessionInfo]) -> None:
    table = Table("session", "changed", "directory", "request", box=None, pad_edge=False)
    for info in sessions:
        changed = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.changed))
        table.add_row(*(Text(printable(each)) for each in (info.id, changed, info.cwd, info.title)))
    # Rich takes any output for a terminal where FORCE_COLOR is set.
    Console(width=None if sys.stdout.isatty() else 1000).print(table)
