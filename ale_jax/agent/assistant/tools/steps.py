"""How an agent divides its work: a list of steps, tasks for sub-agents, and the call that ends
it."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Literal

from pydantic import Field

from ale_jax.agent.assistant.events import Ended, Tell, TodosChanged
from ale_jax.agent.assistant.tools.tool import Arguments, ToolError, ToolResult, TypedTool

MARKS = {"pending": "[ ]", "in_progress": "[>]", "completed": "[x]"}

Delegate = Callable[[str, str], Awaitable[Ended]]  # call's id and task -> how it ended


class TodoItem(Arguments):
    content: str = Field(max_length=500)
    status: Literal["pending", "in_progress", "completed"]


class TodoArguments(Arguments):
    items: list[TodoItem] = Field(max_length=100)


@dataclasses.dataclass(frozen=True)
class TodoTool(TypedTool[TodoArguments]):
    tell: Tell
    agent: str = ""

    name = "todo"
    description = "Replaces your list of steps. Keep exactly one of them in progress."
    only_reads = True
    Arguments = TodoArguments

    async def use(self, arguments: TodoArguments, call_id: str) -> ToolResult:
        items = tuple(item.model_dump() for item in arguments.items)
        await self.tell(TodosChanged(agent=self.agent, items=items))
        lines = [f"{MARKS[item.status]} {item.content}" for item in arguments.items]
        return ToolResult("\n".join(lines) or "[the list is empty]")


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
        if ended.reason != "finished":
            raise ToolError(f"the sub-agent did not finish ({ended.reason}): {ended.detail}")
        return ToolResult(ended.answer)


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
