"""Records of conversations, and the tokenizers that write them."""

import json

from ale_jax.gateway.api.tools import function
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe

TOOLS = [
    function(name, "", {"type": "object", "properties": {"command": {"type": "string"}}})
    for name in ("bash", "look")
]


def call(name, id, **arguments):
    described = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": id, "type": "function", "function": described}


def said(text, *calls, **more):
    return {"role": "assistant", "content": text, "tool_calls": list(calls)} | more


def result(id, text, **more):
    return {"role": "tool", "tool_call_id": id, "content": text} | more


SYSTEM, USER = {"role": "system", "content": "be brief"}, {"role": "user", "content": "count"}
WITH_TOOLS = {
    "messages": [
        SYSTEM,
        USER,
        said("", call("bash", "a", command="cat a.tx")),
        result("a", "no such file", is_error=True),
        said("I look.", call("bash", "b", command="cat a.txt"), call("look", "c")),
        result("b", "7"),
        result("c", "<|im_end|> <tool_call>"),
        said("", call("bash", "d", command="cat  'a.txt'"), call("look", "e")),
        result("d", "7"),
        result("e", "<|im_end|> <tool_call>"),
        {"role": "assistant", "content": "It is 7."},
        {"role": "user", "content": "Thanks."},
    ],
    "tools": TOOLS,
    "reward": 0.5,
}
NUM_REPLIES = 4


def ours():
    texts = [USER, *({"role": "user", "content": json.dumps(WITH_TOOLS)} for _ in range(9))]
    return ChatTokenizer(train_bpe(texts, 400))


def write(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
