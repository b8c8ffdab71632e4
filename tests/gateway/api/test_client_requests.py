"""What clients of all APIs send beside plain messages and functions: it is said to the policy as
far as text can say it, named where it is left out, and refused by its field if it means nothing."""

from functools import partial

import pytest

from ale_jax.gateway.api import anthropic_messages, openai_chat, openai_responses
from ale_jax.gateway.messages import ChatMessage, ToolCall
from ale_jax.gateway.requests import ApiError
from tests.rows import each_row

USER = {"role": "user", "content": "Begin."}
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
BEGIN = ChatMessage("user", "Begin.")
LEFT_OUT = "[{} left out: this model reads text only]"


def chat(*messages, **fields):
    return openai_chat.chat_request(
        openai_chat.ChatBody.model_validate({"messages": [USER, *messages], **fields})
    )


def claude(*messages, **fields):
    body = {"messages": [USER, *messages], "max_tokens": 50, **fields}
    return anthropic_messages.chat_request(anthropic_messages.MessagesBody.model_validate(body))


def codex(*items, find_reply=lambda response: None, **fields):
    body = openai_responses.ResponsesBody.model_validate({"input": [USER, *items], **fields})
    return openai_responses.chat_request(body, find_reply=find_reply)


def says(*blocks):
    return {"role": "user", "content": list(blocks)}


def result(*blocks):
    return says({"type": "tool_result", "tool_use_id": "c", "content": list(blocks)})


def output(*parts):
    return {"type": "function_call_output", "call_id": "c", "output": list(parts)}


def replied(*blocks):
    return {"role": "assistant", "content": list(blocks)}


def user(text):
    return ChatMessage("user", text)


def told(text):
    return ChatMessage("tool", text, answers="c")


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "x"}
SEARCH = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}}
FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "s",
    "content": [{"type": "web_search_result", "url": "u", "title": "t", "encrypted_content": "x"}],
}
FAILED = {"type": "web_search_tool_result_error", "error_code": "unavailable"}
TEXT = {"type": "text", "text": "So."}
REMOVAL = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "x"}}


def document(source, **more):
    return {"type": "document", "source": source, **more}


MESSAGES = {
    # Anthropic's
    "claude's list of agents": (
        partial(claude, {"role": "system", "content": "There are agents."}),
        [ChatMessage("system", "There are agents.")],
        [],
    ),
    "a system message in blocks": (
        partial(claude, {"role": "system", "content": [TEXT, REMOVAL]}),
        [ChatMessage("system", "So.")],
        ["block tool_removal"],
    ),
    "a picture that a tool has read": (
        partial(claude, result(TEXT, IMAGE)),
        [told("So.\n" + LEFT_OUT.format("image"))],
        ["image"],
    ),
    "a picture of the user's": (
        partial(claude, says(IMAGE)),
        [user(LEFT_OUT.format("image"))],
        ["image"],
    ),
    "a document of text": (
        partial(claude, says(document({"type": "text", "data": "Words."}, title="T"))),
        [user("T\nWords.")],
        [],
    ),
    "a document of blocks": (
        partial(claude, says(document({"type": "content", "content": [TEXT, IMAGE]}))),
        [user("So.\n" + LEFT_OUT.format("image"))],
        ["image"],
    ),
    "a document that is no text": (
        partial(claude, says(document(PDF, title=None, context=None))),
        [user(LEFT_OUT.format("document"))],
        ["document"],
    ),
    "a result of a search": (
        partial(
            claude, says({"type": "search_result", "title": "T", "source": "u", "content": [TEXT]})
        ),
        [user("T\nu\nSo.")],
        [],
    ),
    "a tool that was found": (
        partial(claude, result({"type": "tool_reference", "tool_name": "grep"})),
        [told("There is a tool grep.")],
        [],
    ),
    "another server's search": (
        partial(claude, replied(SEARCH, FOUND, TEXT, {"type": "redacted_thinking", "data": "x"})),
        [ChatMessage("assistant", "So.")],
        ["block redacted_thinking", "block server_tool_use", "block web_search_tool_result"],
    ),
    "another server's error": (
        partial(claude, replied(FOUND | {"content": FAILED}, TEXT)),
        [ChatMessage("assistant", "So.")],
        ["block web_search_tool_result"],
    ),
    "what is not known yet, of another policy": (
        partial(claude, replied(TEXT, {"type": "dream"})),
        [ChatMessage("assistant", "So.")],
        ["block dream"],
    ),
    "a summary of what was said before": (
        partial(claude, replied({"type": "compaction", "content": "It went well."}, TEXT)),
        [ChatMessage("assistant", "It went well.\nSo.")],
        [],
    ),
    "files for another server": (
        partial(claude, says({"type": "container_upload", "file_id": "f"})),
        [],
        ["block container_upload"],
    ),
    "nulls": (
        partial(
            claude,
            says({"type": "text", "text": "So.", "cache_control": None, "citations": None}),
            **dict.fromkeys(("system", "tools", "tool_choice", "stop_sequences", "temperature")),
        ),
        [user("So.")],
        [],
    ),
    # OpenAI's responses
    "developers' messages": (
        partial(codex, {"type": "message", "role": "developer", "content": "Be terse."}),
        [ChatMessage("system", "Be terse.")],
        [],
    ),
    "items of other tools": (
        partial(
            codex,
            {"type": "web_search_call", "id": "ws", "status": "completed", "action": {}},
            {"type": "compaction", "encrypted_content": "x"},
            {"type": "local_shell_call_output", "id": "l", "output": {"exit": 0}},
            {"type": "mcp_list_tools", "server_label": "s", "tools": []},
        ),
        [],
        [
            *("item compaction", "item local_shell_call_output"),
            *("item mcp_list_tools", "item web_search_call"),
        ],
    ),
    "a picture that is viewed": (
        partial(codex, output({"type": "input_image", "image_url": "data:image/png;base64,x"})),
        [told(LEFT_OUT.format("image"))],
        ["image"],
    ),
    "a file": (
        partial(codex, {"role": "user", "content": [{"type": "input_file", "file_data": "x"}]}),
        [user(LEFT_OUT.format("file"))],
        ["file"],
    ),
    "a call of a custom tool": (
        partial(
            codex,
            {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "a\nb"},
            {"type": "custom_tool_call_output", "call_id": "c", "output": "Done."},
        ),
        [
            ChatMessage("assistant", "", "", (ToolCall("patch", '{"input": "a\\nb"}', "c"),)),
            told("Done."),
        ],
        [],
    ),
    "a call in a namespace": (
        partial(
            codex,
            {
                **{"type": "function_call", "call_id": "c", "namespace": "agents"},
                **{"name": "spawn", "arguments": "{}"},
            },
            output({"type": "input_text", "text": "So."}),
        ),
        [ChatMessage("assistant", "", "", (ToolCall("agents__spawn", "{}", "c"),)), told("So.")],
        [],
    ),
    "thoughts without a text": (
        partial(
            codex,
            {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None},
            {"type": "message", "role": "assistant", "content": "So.", "phase": None},
            USER,
        ),
        [ChatMessage("assistant", "So."), BEGIN],
        [],
    ),
    # OpenAI's chat completions
    "other media": (
        partial(
            chat,
            says(
                {"type": "text", "text": "See "},
                {"type": "image_url", "image_url": {"url": "x"}},
                {"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}},
            ),
        ),
        [user("See " + LEFT_OUT.format("image") + LEFT_OUT.format("audio"))],
        ["audio", "image"],
    ),
    "a refusal": (
        partial(chat, replied({"type": "refusal", "refusal": "No."}), USER),
        [ChatMessage("assistant", "No."), BEGIN],
        [],
    ),
    "a custom call": (
        partial(
            chat,
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "c", "type": "custom", "custom": {"name": "patch", "input": "a"}}
                ],
            },
            {"role": "tool", "tool_call_id": "c", "content": "Done."},
        ),
        [
            ChatMessage("assistant", "", "", (ToolCall("patch", '{"input": "a"}', "c"),)),
            told("Done."),
        ],
        [],
    ),
}


@each_row("ask, said, unseen", MESSAGES.values(), ids=MESSAGES)
def test_what_clients_say_is_said_to_the_policy(ask, said, unseen):
    asked = ask()
    assert asked.messages[1:] == tuple(said) and asked.messages[0] == BEGIN
    assert sorted(set(asked.unseen)) == unseen


REFUSED = {
    "an unknown block": (partial(claude, says({"type": "dream"})), "messages.1.content"),
    "thoughts of the user": (partial(claude, says({"type": "thinking"})), "messages.1.content"),
    "a result that is no text": (
        partial(claude, says({"type": "tool_result", "tool_use_id": "c", "content": {"a": 1}})),
        "messages.1.content",
    ),
    "an unknown item": (partial(codex, {"type": "dream"}), "input.1.type"),
    "a wish to compact": (partial(codex, {"type": "compaction_trigger"}), "input.1.type"),
    "an unknown part": (partial(codex, says({"type": "dream"})), "input.1"),
    "a result without its call": (
        partial(codex, {"type": "custom_tool_call_output", "output": "x"}),
        "input.1.call_id",
    ),
    "an unknown reference": (
        partial(codex, {"type": "item_reference", "id": "msg_0f"}),
        "input.1.id",
    ),
    "a reference to nothing": (
        partial(codex, {"type": "item_reference", "id": "../x"}),
        "input.1.id",
    ),
    "a call of nothing": (
        partial(chat, {"role": "assistant", "tool_calls": [{"id": "c"}]}),
        "messages.1.tool_calls",
    ),
    "an unknown part of chat completions": (
        partial(chat, says({"type": "dream"})),
        "messages.1",
    ),
}


@each_row("ask, field", REFUSED.values(), ids=REFUSED)
def test_what_means_nothing_is_refused_by_its_field(ask, field):
    with pytest.raises(ApiError) as refused:
        ask()
    assert refused.value.field.startswith(field) and refused.value.status in (400, 404)


def test_an_item_is_told_by_its_id():
    call = ToolCall("bash", "{}", "c")
    replies = {"resp_0a": ChatMessage("assistant", "I look.", "hm", (call,))}
    ids = ("rs_0a", "msg_0a", "fc_0a_0")
    items = [{"type": "item_reference", "id": ids[0]}, *({"id": id} for id in ids[1:])]
    asked = codex(*items, output(), find_reply=replies.get)
    assert asked.messages[1:] == (replies["resp_0a"], told(""))
    with pytest.raises(ApiError, match="fc_0a_1"):
        codex({"id": "fc_0a_1"}, find_reply=replies.get)
