"""The agent's own list of what is to be done, and the call that ends its work."""

from __future__ import annotations

import dataclasses
from typing import Literal

from pydantic import Field

from ale_jax.agent.assistant.events import Tell, TodosChanged
from ale_jax.agent.assistant.tools.tool import Arguments, ToolResult, TypedTool

MARKS = {"pending": "[ ]", "in_progress": "[>]", "completed": "[x]"}


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
