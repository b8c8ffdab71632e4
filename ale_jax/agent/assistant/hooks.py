"""Commands of the user's that run before and after calls of tools."""

from __future__ import annotations

import asyncio
import dataclasses
import fnmatch
import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ale_jax.agent.assistant.clipping import clip
from ale_jax.agent.assistant.settings import Hook, environment_of_tools

KEPT_CHARS = 2000


@dataclasses.dataclass(frozen=True)
class Hooks:
    """Each is told on its standard input, in JSON, of session, tool and arguments; after a call
    also of the output. folder: where they run."""

    hooks: Sequence[Hook]
    session: str
    folder: Path
    seconds: float

    async def before(self, tool: str, arguments: Mapping[str, Any]) -> str | None:
        """Returns why the call may not be made (None if it may): what the first hook that failed
        has written to standard error. A hook that does not end refuses, too."""
        for hook in self._matching("before", tool):
            code, told = await self._run(hook, {"tool": tool, "arguments": arguments})
            if code != 0:
                return told or f"a hook ended with exit code {code}"
        return None

    async def after(
        self, tool: str, arguments: Mapping[str, Any], output: str, is_error: bool
    ) -> str:
        """Returns what the hooks that failed have written to standard error, for the model to
        read."""
        remarks = []
        for hook in self._matching("after", tool):
            about = {"tool": tool, "arguments": arguments, "output": output, "is_error": is_error}
            code, told = await self._run(hook, about)
            if code != 0:
                remarks.append(told or f"a hook ended with exit code {code}")
        return "\n".join(remarks)

    def _matching(self, when: str, tool: str) -> list[Hook]:
        return [h for h in self.hooks if h.when == when and fnmatch.fnmatchcase(tool, h.tools)]

    async def _run(self, hook: Hook, about: Mapping[str, Any]) -> tuple[int, str]:
        """Exit code, and standard error."""
        told = json.dumps({"when": hook.when, "session": self.session, **about}).encode()
        try:
            process = await asyncio.create_subprocess_exec(
                *hook.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                cwd=self.folder,
                env=environment_of_tools(),
                start_new_session=True,  # so that all that it started can be killed with it
            )
        except OSError as error:
            raise ValueError(
                f"hook {hook.command[0]!r:.80} cannot be started: {error.strerror};"
                " correct the config"
            ) from error
        try:
            async with asyncio.timeout(self.seconds):
                _, errors = await process.communicate(told)
        except TimeoutError:
            return 124, f"the hook {hook.command[0]} did not end within {self.seconds:g} s"
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        assert process.returncode is not None, "it has ended"
        return process.returncode, clip(errors.decode(errors="replace").strip(), KEPT_CHARS)
