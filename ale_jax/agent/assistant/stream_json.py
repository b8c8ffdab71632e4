"""The session as a stream of JSON lines, as Claude Code and qwen-code write it (stream-json)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

from ale_jax.agent.assistant.events import CallEnded, Ended, Event, Replied, Started
from ale_jax.agent.assistant.messages import AssistantCall, Usage
from ale_jax.agent.assistant.tools.tool import ToolError, parse_arguments

SUBTYPES = {
    "finished": "success",
    "refused": "error_during_execution",
    "max_turns": "error_max_turns",
    "length": "error_during_execution",
    "cancelled": "error_during_execution",
    "failed": "error_during_execution",
}


class StreamJson:
    """A listener. write: takes a line."""

    def __init__(self, session: str, model: str, write: Callable[[str], object]):
        self._session, self._model, self._write = session, model, write
        self._usage = Usage(0, 0)
        self._denials: list[dict[str, Any]] = []
        self._calls: dict[str, AssistantCall] = {}

    async def __call__(self, event: Event) -> None:
        match event:
            case Replied():
                self._usage += event.usage or Usage(0, 0)
                if not event.for_summary:
                    self._reply(event)
            case CallEnded():
                self._result(event)
            case Ended(agent=""):
                self._end(event)

    def begin(self, started: Started, tools: tuple[str, ...], servers: tuple[str, ...]) -> None:
        self._send(
            "system",
            subtype="init",
            cwd=started.cwd,
            model=started.model,
            permissionMode=started.mode,
            tools=list(tools),
            mcp_servers=[{"name": name, "status": "connected"} for name in servers],
        )

    def _reply(self, event: Replied) -> None:
        self._calls.update((call.id, call) for call in event.calls)
        content: list[dict[str, Any]] = []
        if event.reasoning:
            content.append({"type": "thinking", "thinking": event.reasoning, "signature": ""})
        if event.content:
            content.append({"type": "text", "text": event.content})
        content += [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": input_of(call)}
            for call in event.calls
        ]
        message = {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": _stop_reason(event),
            "stop_sequence": None,
            "usage": _usage(event.usage or Usage(0, 0)),
        }
        self._send("assistant", message=message, parent_tool_use_id=event.agent or None)

    def _result(self, event: CallEnded) -> None:
        if event.refused and (call := self._calls.get(event.call_id)):
            denial = {"tool_name": call.name, "tool_use_id": call.id, "tool_input": input_of(call)}
            self._denials.append(denial)
        result = {
            "type": "tool_result",
            "tool_use_id": event.call_id,
            "content": event.output,
            "is_error": event.is_error,
        }
        message = {"role": "user", "content": [result]}
        self._send("user", message=message, parent_tool_use_id=event.agent or None)

    def _end(self, event: Ended) -> None:
        failed = event.reason != "finished"
        self._send(
            "result",
            subtype=SUBTYPES[event.reason],
            is_error=failed,
            duration_ms=round(1000 * event.seconds),
            num_turns=event.turns,
            result=event.answer if not failed else event.detail or event.reason,
            usage=_usage(self._usage),
            permission_denials=self._denials,
        )

    def _send(self, kind: str, **fields: Any) -> None:
        record = {"type": kind, **fields, "session_id": self._session, "uuid": str(uuid.uuid4())}
        # In ASCII: whoever reads it need not know how our standard output is encoded.
        self._write(json.dumps(record))


def input_of(call: AssistantCall) -> dict[str, Any]:
    """Arguments as an object. What the model wrote instead of one is under "invalid"."""
    try:
        return parse_arguments(call)
    except ToolError:
        return {"invalid": call.arguments}


def _stop_reason(event: Replied) -> str:
    if event.calls:
        return "tool_use"
    return "max_tokens" if event.stop == "length" else "end_turn"


def _usage(usage: Usage) -> dict[str, int]:
    return {
        # Anthropic's API counts what it read from the cache apart from the rest.
        "input_tokens": usage.prompt - usage.cached,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion,
    }
