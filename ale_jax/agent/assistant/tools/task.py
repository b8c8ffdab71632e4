"""Giving a task to a sub-agent, which has a context of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable

from pydantic import Field

from ale_jax.agent.assistant.events import Ended
from ale_jax.agent.assistant.tools.tool import Arguments, ToolError, ToolResult, TypedTool

Delegate = Callable[[str, str], Awaitable[Ended]]  # call's id and task -> how it ended


class TaskArguments(Arguments):
    task: str = Field(min_length=1, description="all that the sub-agent has to know")


@dataclasses.dataclass(frozen=True)
class TaskTool(TypedTool[TaskArguments]):
    """only_reads: each call of the sub-agent is permitted for itself."""

    delegate: Delegate

    name = "task"
    description = "Lets a sub-agent work on a task; it sees nothing of this conversation."
    only_reads = True
    beside_others = True
    Arguments = TaskArguments

    async def use(self, arguments: TaskArguments, call_id: str) -> ToolResult:
        ended = await self.delegate(call_id, arguments.task)
        if ended.reason != "finished":
            raise ToolError(f"the sub-agent did not finish ({ended.reason}): {ended.detail}")
        return ToolResult(ended.answer)
