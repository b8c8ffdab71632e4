"""Content of Anthropic's messages: the text, the thoughts and the calls that its blocks say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from pydantic import Field

from ale_jax.gateway.api.fields import Fields, not_text
from ale_jax.gateway.messages import ChatMessage, ToolCall
from ale_jax.gateway.requests import ApiError

# Of tools that run on servers, and for servers only.
FOREIGN = frozenset(
    [
        "advisor_tool_result",
        "bash_code_execution_tool_result",
        "code_execution_tool_result",
        "container_upload",
        "fallback",
        "mcp_tool_listing",
        "mcp_tool_result",
        "mcp_tool_use",
        "redacted_thinking",
        "server_tool_use",
        "text_editor_code_execution_tool_result",
        "tool_addition",
        "tool_removal",
        "tool_search_tool_result",
        "web_fetch_tool_result",
        "web_search_tool_result",
    ]
)


class Source(Fields):
    """Of an image or a document. data: of a text, or base64 of another kind."""

    type: str = ""
    data: str = ""
    content: str | list[Block] = ""


class Block(Fields):
    """A block of content; which fields there are depends on its type."""

    type: str
    text: str = ""
    thinking: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, Any] = Field(default_factory=dict)
    tool_use_id: str = ""
    tool_name: str = ""
    title: str = ""
    source: str | Source = ""
    content: str | list[Block] | dict[str, Any] | None = None


class MessagesInput(Fields):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


def messages_of(message: MessagesInput, field: str, unseen: list[str]) -> Iterator[ChatMessage]:
    """Yields what a message says. Results of tools are messages of their own, before what else the
    user says. unseen: what is left out is added by its name. ApiError (400) for a block that no
    such message has."""
    blocks = message.content
    if isinstance(blocks, str):
        yield ChatMessage(message.role, blocks)
    elif message.role == "assistant":
        yield _reply(blocks, field, unseen)
    else:
        rest = [block for block in blocks if block.type != "tool_result"]
        for block in blocks:
            if block.type == "tool_result":
                text = text_of(block.content or "", field, unseen)
                yield ChatMessage("tool", text, answers=block.tool_use_id)
        if all(block.type in FOREIGN for block in rest):
            unseen += [f"block {block.type}" for block in rest]
        else:
            yield ChatMessage(message.role, text_of(rest, field, unseen))


def text_of(content: str | Sequence[Block] | dict[str, Any], field: str, unseen: list[str]) -> str:
    """Returns what blocks say, in lines. Otherwise as `messages_of`."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        raise ApiError(400, "content must be a text or a list of blocks", field)
    texts = (_block_text(block, field, unseen) for block in content)
    return "\n".join(text for text in texts if text is not None)


def _block_text(block: Block, field: str, unseen: list[str]) -> str | None:
    """None if it says nothing to the policy."""
    match block.type:
        case "text":
            return block.text
        case "image":
            return not_text("image", unseen)
        case "document":
            return _document(block, field, unseen)
        case "search_result":
            source = block.source if isinstance(block.source, str) else ""
            text = text_of(block.content or "", field, unseen)
            return "\n".join(filter(None, (block.title, source, text)))
        case "tool_reference":
            return f"There is a tool {block.tool_name}."
        case "compaction":
            return block.content if isinstance(block.content, str) else None
        case kind if kind in FOREIGN:
            unseen.append(f"block {kind}")
            return None
    raise ApiError(400, f"a block of type {block.type!r:.80}: there is only text", field)


def _document(block: Block, field: str, unseen: list[str]) -> str:
    source = block.source if isinstance(block.source, Source) else Source()
    match source.type:
        case "text":
            text = source.data
        case "content":
            text = text_of(source.content, field, unseen)
        case _:
            text = not_text("document", unseen)
    return "\n".join(filter(None, (block.title, text)))


def _reply(blocks: Sequence[Block], field: str, unseen: list[str]) -> ChatMessage:
    """A block that is not known was written by no policy here, so it is left out."""
    said = [block for block in blocks if block.type in ("text", "compaction")]
    known = ("text", "compaction", "thinking", "tool_use")
    unseen += [f"block {block.type:.60}" for block in blocks if block.type not in known]
    return ChatMessage(
        "assistant",
        text_of(said, field, unseen),
        "".join(block.thinking for block in blocks if block.type == "thinking"),
        tuple(
            ToolCall(block.name, json.dumps(block.input, ensure_ascii=False), block.id)
            for block in blocks
            if block.type == "tool_use"
        ),
    )
