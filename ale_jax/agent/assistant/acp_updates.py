"""What an ACP client is told of a session while it goes on, and what it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ale_jax.agent.assistant.events import (
    Asked,
    CallEnded,
    CallStarted,
    Event,
    Replied,
    Written,
)
from ale_jax.agent.assistant.extra import load
from ale_jax.agent.assistant.permissions import ALWAYS, NO, ONCE, subject_of
from ale_jax.agent.assistant.stream_json import input_of

KINDS = {
    "bash": "execute",
    "read": "read",
    "write": "edit",
    "edit": "edit",
    "search": "search",
    "task": "other",
}
MAX_TITLE = 200


class Updates:
    """A listener. context_tokens: what the model can read. folder: the working directory."""

    def __init__(self, client: Any, session: str, context_tokens: int, folder: Path):
        self._acp, self._schema = load("acp"), load("acp.schema")
        self._client, self._session = client, session
        self._context_tokens, self._folder = context_tokens, folder

    async def __call__(self, event: Event) -> None:
        match event:
            # A sub-agent's words are not the conversation's, but what it does is shown.
            case Written(agent="", part="text"):
                await self._send(self._acp.update_agent_message_text(event.text))
            case Written(agent=""):
                await self._send(self._acp.update_agent_thought_text(event.text))
            case CallStarted():
                await self._start(event)
            case CallEnded():
                await self._end(event)
            case Replied(agent="", for_summary=False) if event.usage is not None:
                used = event.usage.prompt + event.usage.completion
                await self._send(
                    self._schema.UsageUpdate(
                        session_update="usage_update", used=used, size=self._context_tokens
                    )
                )

    async def replay(self, event: Event) -> None:
        """Tells the client of an event of the log, which has no pieces."""
        match event:
            case Asked(agent=""):
                await self._send(self._acp.update_user_message_text(event.text))
            case Replied(for_summary=False):
                for part, text in (("thought", event.reasoning), ("text", event.content)):
                    if text:
                        await self(Written(agent=event.agent, part=part, text=text))
                for call in event.calls:
                    await self(CallStarted(agent=event.agent, call=call, arguments=input_of(call)))
            case _:
                await self(event)

    async def mode(self, mode: str) -> None:
        await self._send(
            self._schema.CurrentModeUpdate(
                session_update="current_mode_update", current_mode_id=mode
            )
        )

    async def ask(self, call_id: str, tool: str, arguments: Mapping[str, Any]) -> str:
        """Asks the person at the client. Returns the answer; NO if the client cancels."""
        options = [
            self._schema.PermissionOption(option_id=id, name=name, kind=kind)
            for id, name, kind in (
                (ONCE, "Allow", "allow_once"),
                (ALWAYS, "Always allow", "allow_always"),
                (NO, "Refuse", "reject_once"),
            )
        ]
        call = self._schema.ToolCallUpdate(
            tool_call_id=call_id,
            title=_title(tool, arguments),
            kind=KINDS.get(tool, "other"),
            status="pending",
            content=self._change(tool, arguments),
            raw_input=dict(arguments),
        )
        response = await self._client.request_permission(
            session_id=self._session, tool_call=call, options=options
        )
        outcome = response.outcome
        return outcome.option_id if outcome.outcome == "selected" else NO

    async def _start(self, event: CallStarted) -> None:
        arguments = event.arguments or {}
        await self._send(
            self._acp.start_tool_call(
                event.call.id,
                _title(event.call.name, arguments),
                kind=KINDS.get(event.call.name, "other"),
                status="in_progress",
                content=self._change(event.call.name, arguments),
                raw_input=arguments,
            )
        )

    async def _end(self, event: CallEnded) -> None:
        content = None
        if event.is_error or event.name not in ("write", "edit"):  # whose change stays as shown
            content = [self._acp.tool_content(self._acp.text_block(event.output))]
        if event.name == "finish" and not event.agent and not event.is_error and event.output:
            # The answer is for the person, who need not unfold a call to read it.
            await self._send(self._acp.update_agent_message_text(event.output))
        await self._send(
            self._acp.update_tool_call(
                event.call_id,
                status="failed" if event.is_error else "completed",
                content=content,
            )
        )

    def _change(self, tool: str, arguments: Mapping[str, Any]) -> list[Any] | None:
        """What a call would change, for editors to show."""
        names = {"write": ("content", None), "edit": ("new", "old")}.get(tool)
        if names is None:
            return None
        new, old = (name and str(arguments.get(name, "")) for name in names)
        path = str(self._folder / str(arguments.get("path", "")))
        return [self._acp.tool_diff_content(path, new, old)]

    async def _send(self, update: Any) -> None:
        await self._client.session_update(session_id=self._session, update=update)


def _title(tool: str, arguments: Mapping[str, Any]) -> str:
    text = " ".join(f"{tool}: {subject_of(tool, arguments)}".split())
    return text if len(text) <= MAX_TITLE else f"{text[:MAX_TITLE]}..."
