"""Searching files by content and by name."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import sys
from pathlib import Path

from pydantic import Field

from ale_jax.agent.assistant.tools import search_worker
from ale_jax.agent.assistant.tools.tool import Arguments, ToolError, ToolResult, TypedTool
from ale_jax.agent.assistant.workspace import Workspace


class SearchArguments(Arguments):
    pattern: str = Field("", max_length=1000, description="regular expression; empty: only names")
    name: str = Field("*", max_length=1000, description="files, such as *.py or src/*")
    path: str = Field(".", description="where to begin")


@dataclasses.dataclass(frozen=True)
class SearchTool(TypedTool[SearchArguments]):
    workspace: Workspace
    seconds: float = 20.0

    name = "search"
    description = "Searches files for lines that match, or for names."
    only_reads = True
    Arguments = SearchArguments

    async def use(self, arguments: SearchArguments, call_id: str) -> ToolResult:
        try:
            re.compile(arguments.pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise ToolError(f"not a regular expression: {error}") from None
        root = self.workspace.to_read(arguments.path)
        if not root.exists():
            raise ToolError(f"{arguments.path!r:.200}: there is no such file or folder")
        asked = {
            "root": str(root),
            "base": str(self.workspace.root.resolve()),
            "pattern": arguments.pattern,
            "name": arguments.name,
        }
        text = await self._ask_worker(asked)
        return ToolResult(text or "[nothing found]")

    async def _ask_worker(self, asked: dict[str, str]) -> str:
        # -I: no module of the working directory's is loaded in place of the library's.
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(Path(search_worker.__file__))),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(self.seconds):
                output, _ = await worker.communicate(json.dumps(asked).encode())
        except TimeoutError:
            raise ToolError(f"no end after {self.seconds:g} s; search for less") from None
        finally:
            if worker.returncode is None:
                worker.kill()
                await worker.wait()
        if worker.returncode != 0:
            raise ToolError(f"the search failed with exit code {worker.returncode}")
        return output.decode(errors="replace")
