"""How an agent divides and ends its work: tasks for sub-agents, and the call of the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable

from pydantic import Field

from ale_jax.agent.assistant.events import Ended
from ale_jax.agent.assistant.tools.tool import Arguments, ToolResult, TypedTool

Delegate = Callable[[str, str], Awaitable[Ended]]  # call's id and task -> how it ended


class TaskArguments(Arguments):
    task: str = Field(min_length=1, description="all that the sub-agent has to know")


@dataclasses.dataclass(frozen=True)
class TaskTool(TypedTool[TaskArguments]):
    """Gives a task to a sub-agent, which has a context of its own.

    It counts as `only_reads`, for each call of the sub-agent is permitted for itself.
    """

    delegate: Delegate

    name = "task"
    description = "Lets a sub-agent work on a task; it sees nothing of this conversation."
    only_reads = True
    beside_others = True
    Arguments = TaskArguments

    async def use(self, arguments: TaskArguments, call_id: str) -> ToolResult:
        ended = await self.delegate(call_id, arguments.task)
        if ended.reason == "finished":
            return ToolResult(ended.answer)
        told = f"the sub-agent did not finish ({ended.reason}): {ended.detail}"
        return ToolResult(told, is_error=True, refused=ended.reason == "refused")


class FinishArguments(Arguments):
    answer: str = ""


@dataclasses.dataclass(frozen=True)
class FinishTool(TypedTool[FinishArguments]):
    name = "finish"
    description = "Ends your work with an answer."
    only_reads = True
    Arguments = FinishArguments

    async def use(self, arguments: FinishArguments, call_id: str) -> ToolResult:
        return ToolResult(arguments.answer, ends=True)
