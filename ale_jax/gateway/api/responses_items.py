"""Items of OpenAI's responses as the messages that they are parts of."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

from pydantic import Field

from ale_jax.gateway.api.fields import Fields, not_text
from ale_jax.gateway.api.tools import custom_arguments, full_name
from ale_jax.gateway.messages import ChatMessage, ToolCall
from ale_jax.gateway.requests import ApiError

TEXTS = ("input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text")
# What a part of the content is that is no text, by its type.
MEDIA = {
    "input_image": "image",
    "input_file": "file",
    "input_audio": "audio",
    "computer_screenshot": "screenshot",
}
# Calls of tools that run on servers or that only some models know, and what is written for servers.
FOREIGN = frozenset(
    [
        "additional_tools",
        "apply_patch_call",
        "apply_patch_call_output",
        "code_interpreter_call",
        "compaction",
        "compaction_summary",
        "computer_call",
        "computer_call_output",
        "configuration_update",
        "context_compaction",
        "file_search_call",
        "ghost_snapshot",
        "image_generation_call",
        "local_shell_call",
        "local_shell_call_output",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "program_output",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    ]
)
REFERENCE = "item_reference"
# Of items that this gateway has sent: what they are, the response, and of calls which one.
ITEM_ID = re.compile(r"(rs|msg|fc|ctc)_([0-9a-f]{1,64})(?:_([0-9]{1,4}))?")

FindReply = Callable[[str], ChatMessage | None]


class ResponsesPart(Fields):
    type: str
    text: str = ""
    refusal: str = ""


class Item(Fields):
    """An item of the conversation; which fields there are depends on its type."""

    type: str = ""
    id: str = ""
    role: Literal["system", "developer", "user", "assistant"] = "user"
    content: str | list[ResponsesPart] | dict[str, Any] | None = None
    summary: list[ResponsesPart] = Field(default_factory=list)
    name: str = ""
    namespace: str = ""
    arguments: str = "{}"
    input: str = ""
    call_id: str = ""
    output: str | list[ResponsesPart] | dict[str, Any] = ""

    @property
    def kind(self) -> str:
        """The type, which messages and references may leave out."""
        return self.type or (REFERENCE if self.id and self.content is None else "message")


@dataclasses.dataclass
class Told:
    """What items say. find_reply: the policy's reply of a response with this id, for references to
    its items. unseen: what is left out, by name."""

    find_reply: FindReply
    messages: list[ChatMessage]
    unseen: list[str] = dataclasses.field(default_factory=list)

    def add(self, item: Item, field: str) -> None:
        """Adds an item. Thoughts, text and calls of the policy that follow each other are one
        message of its. ApiError (400) for an item that means nothing, or (404) is not known."""
        match item.kind:
            case "message" if item.role != "assistant":
                role = "system" if item.role == "developer" else item.role
                self.messages.append(ChatMessage(role, self._text(item.content, field)))
            case "message":
                self._join(ChatMessage("assistant", self._text(item.content, field)))
            case "reasoning":
                thoughts = self._text(item.content, field) or self._text(item.summary, field)
                self._join(ChatMessage("assistant", "", thoughts))
            case "function_call" | "custom_tool_call":
                self._join(ChatMessage("assistant", "", tool_calls=(_call(item),)))
            case "function_call_output" | "custom_tool_call_output":
                if not item.call_id:
                    raise ApiError(400, "call_id is missing", f"{field}.call_id")
                text = self._text(item.output, f"{field}.output")
                self.messages.append(ChatMessage("tool", text, answers=item.call_id))
            case "item_reference":
                self._join(self._referred(item.id, field))
            case kind if kind in FOREIGN:
                self.unseen.append(f"item {kind}")
            case kind:
                raise ApiError(400, f"items of type {kind!r:.80} are not known", f"{field}.type")

    def _join(self, more: ChatMessage) -> None:
        last = self.messages[-1] if self.messages else None
        if last is None or last.role != "assistant" or (last.content and more.content):
            self.messages.append(more)
            return
        self.messages[-1] = ChatMessage(
            "assistant",
            last.content + more.content,
            last.reasoning + more.reasoning,
            last.tool_calls + more.tool_calls,
        )

    def _referred(self, id: str, field: str) -> ChatMessage:
        if found := ITEM_ID.fullmatch(id):
            kind, response, number = found.groups()
            reply = self.find_reply(f"resp_{response}")
            if reply and (part := _part(reply, kind, int(number or 0))):
                return part
        raise ApiError(404, f"there is no item {id!r:.80}", f"{field}.id")

    def _text(self, content: str | list[ResponsesPart] | dict | None, field: str) -> str:
        if content is None or isinstance(content, str):
            return content or ""
        if isinstance(content, dict):
            raise ApiError(400, "content must be a text or a list of parts", field)
        return "".join(self._part_text(part, field) for part in content)

    def _part_text(self, part: ResponsesPart, field: str) -> str:
        if part.type in MEDIA:
            return not_text(MEDIA[part.type], self.unseen)
        if part.type not in TEXTS:
            raise ApiError(400, f"content of type {part.type!r:.80}: there is only text", field)
        return part.text or part.refusal


def _call(item: Item) -> ToolCall:
    is_custom = item.kind == "custom_tool_call"
    arguments = custom_arguments(item.input) if is_custom else item.arguments
    return ToolCall(full_name(item.namespace, item.name), arguments, item.call_id)


def _part(reply: ChatMessage, kind: str, number: int) -> ChatMessage | None:
    """The part of a reply that was sent as an item; None if there was no such item."""
    match kind:
        case "rs":
            return ChatMessage("assistant", "", reply.reasoning)
        case "msg":
            return ChatMessage("assistant", reply.content)
    calls: Sequence[ToolCall] = reply.tool_calls[number : number + 1]
    return ChatMessage("assistant", "", tool_calls=tuple(calls)) if calls else None
