"""The loop: ask the model, run what it calls, until it is done."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ale_jax.agent.assistant.clipping import Outputs
from ale_jax.agent.assistant.context_room import ContextRoom
from ale_jax.agent.assistant.conversation import Conversation
from ale_jax.agent.assistant.endpoint import Endpoint, EndpointError
from ale_jax.agent.assistant.events import (
    Asked,
    CallEnded,
    CallStarted,
    Ended,
    Replied,
    Tell,
    Written,
)
from ale_jax.agent.assistant.messages import AssistantCall
from ale_jax.agent.assistant.permissions import Gatekeeper
from ale_jax.agent.assistant.tools.tool import (
    Tool,
    Toolbox,
    ToolError,
    ToolResult,
    parse_arguments,
)

REMEDIES = {
    "max_turns": "the limit of turns is reached; raise --max-turns, or resume the session",
    "length": "the reply was cut off at the limit of tokens; raise max_tokens in the config",
    "refused": "no call of a tool was permitted; allow some by rules, or start with --mode=auto",
}


@dataclasses.dataclass(frozen=True)
class Agent:
    """One conversation with the model. name: of a sub-agent; empty: the main one. max_turns: of one
    request. tell: has to add each event to `conversation`."""

    name: str
    endpoint: Endpoint
    conversation: Conversation
    toolbox: Toolbox
    run_call: CallRunner
    room: ContextRoom
    max_turns: int
    tell: Tell

    async def work_on(self, request: str) -> Ended:
        """Works until the model has an answer. What goes wrong is in the event that is returned,
        which was told already. CancelledError is raised again after that."""
        start, progress = time.monotonic(), _Progress()
        try:
            await self.tell(Asked(agent=self.name, text=request))
            reason, answer = await self._turns(progress)
            if reason == "finished" and progress.refused and not progress.permitted:
                reason = "refused"
            detail = REMEDIES.get(reason, "")
        except EndpointError as error:
            reason, answer, detail = "failed", "", str(error)
        except asyncio.CancelledError:
            await self.tell(self._ended("cancelled", progress, start))
            raise
        ended = dataclasses.replace(
            self._ended(reason, progress, start), answer=answer, detail=detail
        )
        await self.tell(ended)
        return ended

    async def _turns(self, progress: _Progress) -> tuple[str, str]:
        """Reason of the end, and answer."""
        while progress.turns < self.max_turns:
            await self.room.make()
            progress.turns += 1
            reply = await self._ask()
            if not reply.calls:
                return ("length" if reply.stop == "length" else "finished"), reply.content
            for calls in self._together(reply.calls):
                for result in await self._run(calls):
                    if result.ends:
                        return "finished", result.text
                    progress.count(result)
        return "max_turns", ""

    def _together(self, calls: Sequence[AssistantCall]) -> list[list[AssistantCall]]:
        """Calls in a row that need not wait for each other; all others alone, in their order."""
        groups: list[list[AssistantCall]] = []
        for call in calls:
            newest = groups[-1][-1:] if groups else []
            if newest and all(map(self._runs_beside_others, (call, *newest))):
                groups[-1].append(call)
            else:
                groups.append([call])
        return groups

    def _runs_beside_others(self, call: AssistantCall) -> bool:
        return self.toolbox.runs_beside_others(call.name)

    async def _run(self, calls: Sequence[AssistantCall]) -> list[ToolResult]:
        if len(calls) == 1:
            return [await self.run_call(calls[0])]
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(self.run_call(call)) for call in calls]
        return [each.result() for each in running]

    def _ended(self, reason: str, progress: _Progress, start: float) -> Ended:
        seconds = time.monotonic() - start
        return Ended(agent=self.name, reason=reason, turns=progress.turns, seconds=seconds)

    async def _ask(self) -> Replied:
        async def see(part: str, text: str) -> None:
            await self.tell(Written(agent=self.name, part=part, text=text))

        messages, tools = self.conversation.messages(), self.toolbox.definitions()
        reply = await self.endpoint.reply(messages, tools, see)
        replied = Replied(
            agent=self.name,
            content=reply.content,
            reasoning=reply.reasoning,
            calls=self.conversation.with_own_ids(reply.calls),
            stop=reply.stop,
            usage=reply.usage,
        )
        await self.tell(replied)
        return replied


@dataclasses.dataclass
class _Progress:
    """turns: calls of the model. permitted, refused: calls of tools."""

    turns: int = 0
    permitted: int = 0
    refused: int = 0

    def count(self, result: ToolResult) -> None:
        self.refused += result.refused
        self.permitted += not result.refused


class _Refused(ToolError):
    pass


@dataclasses.dataclass(frozen=True)
class CallRunner:
    """Runs calls of tools, from the model's words to what the model reads of them.

    agent: the sub-agent that calls; empty: the main one.
    """

    agent: str
    toolbox: Toolbox
    gatekeeper: Gatekeeper
    outputs: Outputs
    tell: Tell

    async def __call__(self, call: AssistantCall) -> ToolResult:
        """Runs a call and tells of it. Whatever is wrong with the call is told to the model."""
        arguments = None
        try:
            arguments = parse_arguments(call)
            await self.tell(CallStarted(agent=self.agent, call=call, arguments=arguments))
            tool = self.toolbox.find(call.name)
            await self._admit(call, tool, arguments)
            result = await _run(tool, arguments, call.id)
        except ToolError as error:
            result = ToolResult(str(error), is_error=True, refused=isinstance(error, _Refused))
            if arguments is None:
                await self.tell(CallStarted(agent=self.agent, call=call, arguments=None))
        output, whole = self.outputs.clipped(result.text)
        await self.tell(
            CallEnded(
                agent=self.agent,
                call_id=call.id,
                name=call.name,
                output=output,
                is_error=result.is_error,
                refused=result.refused,
                whole=whole,
            )
        )
        return result

    async def _admit(self, call: AssistantCall, tool: Tool, arguments: Mapping[str, Any]) -> None:
        refusal = await self.gatekeeper.refusal(call.id, tool.name, arguments, tool.only_reads)
        if refusal is not None:
            raise _Refused(f"refused: {refusal}")


async def _run(tool: Tool, arguments: Mapping[str, Any], call_id: str) -> ToolResult:
    """Runs a tool. What the system refuses, such as a file's name that is too long, is wrong with
    the call, too, and raises ToolError."""
    try:
        return await tool.run(arguments, call_id)
    except (OSError, ValueError) as error:
        raise ToolError(f"{tool.name} failed: {error}") from error
