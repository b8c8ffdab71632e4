"""A call of a tool, from the model's words to what the model reads of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ale_jax.agent.assistant.events import CallEnded, CallStarted, Tell
from ale_jax.agent.assistant.hooks import Hooks
from ale_jax.agent.assistant.messages import AssistantCall
from ale_jax.agent.assistant.outputs import Outputs
from ale_jax.agent.assistant.permissions import Gatekeeper
from ale_jax.agent.assistant.tools.tool import (
    Tool,
    Toolbox,
    ToolError,
    ToolResult,
    parse_arguments,
)


class _Refused(ToolError):
    pass


@dataclasses.dataclass(frozen=True)
class CallRunner:
    """agent: the sub-agent that calls; empty: the main one."""

    agent: str
    toolbox: Toolbox
    gatekeeper: Gatekeeper
    hooks: Hooks
    outputs: Outputs
    tell: Tell

    async def __call__(self, call: AssistantCall) -> ToolResult:
        """Whatever is wrong with the call is told to the model."""
        arguments, result, refused = None, None, False
        try:
            arguments = parse_arguments(call)
            await self.tell(CallStarted(agent=self.agent, call=call, arguments=arguments))
            tool = self.toolbox.find(call.name)
            await self._admit(call, tool, arguments)
            result = await _run(tool, arguments, call.id)
        except ToolError as error:
            refused = isinstance(error, _Refused)
            result = ToolResult(str(error), is_error=True)
            if arguments is None:
                await self.tell(CallStarted(agent=self.agent, call=call, arguments=None))
        if arguments is not None and not refused:
            result = await self._with_remarks(call.name, arguments, result)
        output, whole = self.outputs.clipped(result.text)
        await self.tell(
            CallEnded(
                agent=self.agent,
                call_id=call.id,
                name=call.name,
                output=output,
                is_error=result.is_error,
                refused=refused,
                whole=whole,
            )
        )
        return result

    async def _admit(self, call: AssistantCall, tool: Tool, arguments: Mapping[str, Any]) -> None:
        """Hooks come first: nobody should be asked about what is refused anyway."""
        refusal = await self.hooks.before(tool.name, arguments)
        if refusal is None:
            refusal = await self.gatekeeper.refusal(call.id, tool.name, arguments, tool.only_reads)
        if refusal is not None:
            raise _Refused(f"refused: {refusal}")

    async def _with_remarks(
        self, tool: str, arguments: Mapping[str, Any], result: ToolResult
    ) -> ToolResult:
        remarks = await self.hooks.after(tool, arguments, result.text, result.is_error)
        # An answer is for the user, and stays as it is.
        if not remarks or result.ends:
            return result
        return dataclasses.replace(result, text=f"{result.text}\n[{remarks}]")


async def _run(tool: Tool, arguments: Mapping[str, Any], call_id: str) -> ToolResult:
    """As `Tool.run`. What the system refuses, such as a file's name that is too long, is wrong with
    the call, too: ToolError."""
    try:
        return await tool.run(arguments, call_id)
    except (OSError, ValueError) as error:
        raise ToolError(f"{tool.name} failed: {error}") from error
