"""What a client asks of the policy, and what it gets, independent of the API."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from ale_jax.gateway.messages import ChatMessage

Prompt = str | Sequence[int]
Finish = Literal["stop", "length", "tool_calls"]
AUTO, NONE, REQUIRED = "auto", "none", "required"  # of tool_choice; else the name of a tool
CONTEXT_FULL = "context_length_exceeded"  # as OpenAI's clients know it
MAX_STOP = 256  # characters; the engine's thread looks for all stops after every dispatch


@dataclasses.dataclass(frozen=True)
class SampleOptions:
    """How replies are sampled. None: as the episode says.

    max_tokens: of each reply. stop: texts that end a reply, and are not part of it. n: replies.
    top_logprobs: how many tokens to show the log-probabilities of, beside the one that was sampled;
    None: of none. logit_bias: what is added to the logits of tokens, by id. min_tokens: before the
    policy may end a reply. grammar: of the whole reply, in Lark; "" for any reply. priority: of a
    reply among others; higher ones are written first.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    top_logprobs: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict)
    min_p: float | None = None
    min_tokens: int = 0
    grammar: str = ""
    priority: int = 0


@dataclasses.dataclass(frozen=True)
class ChatRequest:
    """What a client asks the policy. tools: as chat templates take them. tool_choice: AUTO, NONE,
    REQUIRED, or a tool's name. allowed: the names of the tools that may be called; None for all.
    schema: that the content must satisfy; None for any text. stream: whether the reply is sent
    while it is written, with_usage: and the usage at its end. prompts: texts or ids that the policy
    goes on with as they are, instead of the messages, of which there are none then. variables: of
    the chat template, by name. effort: of reasoning, for templates that read one. unseen: what
    the client sent and the policy is not shown, by name, such as tools of a server. is_retry:
    whether the client says that it has asked this before."""

    model: str
    messages: tuple[ChatMessage, ...]
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: str = AUTO
    allowed: tuple[str, ...] | None = None
    parallel_calls: bool = True
    schema: Mapping[str, Any] | None = None
    options: SampleOptions = SampleOptions()
    stream: bool = False
    with_usage: bool = False
    prompts: tuple[Prompt, ...] = ()
    variables: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    effort: str = ""
    unseen: tuple[str, ...] = ()
    is_retry: bool = dataclasses.field(default=False, compare=False)

    @cached_property
    def num_chars(self) -> int:
        """Counts the characters of messages, of tools as JSON, and of prompts, in which an id
        counts as a letter."""
        texts = sum(each.num_chars for each in self.messages) + sum(map(len, self.prompts))
        others = (each for each in (self.tools, self.variables) if each)
        return texts + sum(len(json.dumps(each, ensure_ascii=False)) for each in others)


@dataclasses.dataclass(frozen=True)
class Usage:
    """Tokens. cached: of the prompt, those that did not have to be read again."""

    prompt: int
    completion: int
    cached: int = 0


@dataclasses.dataclass(frozen=True)
class TokenLogprob:
    """A token of a reply, by its text, and its log-probability. top: the most probable tokens in
    its place. data: its bytes, which may be a part of a character; None if only the text is known.
    """

    text: str
    logprob: float
    top: tuple[TokenLogprob, ...] = ()
    data: bytes | None = None


@dataclasses.dataclass(frozen=True)
class Choice:
    """One reply to a request. logprobs: of all tokens of the reply; None if they were not asked
    for. stop: the text that ended it, of those that were to; "" if none did."""

    message: ChatMessage
    finish: Finish
    logprobs: tuple[TokenLogprob, ...] | None = None
    stop: str = ""


@dataclasses.dataclass(frozen=True)
class ChatResult:
    """The answer to a request, whose choices are in the order of its prompts and replies."""

    id: str
    created: int  # seconds since 1970
    model: str
    choices: tuple[Choice, ...]
    usage: Usage


class ApiError(Exception):
    """A request that is refused, as every API tells it in its own shape.

    status: of HTTP. field: what is wrong with it, if one is. retry_after: seconds after which it
    may be sent again; None if that would not help. code: for programs, where the status says too
    little.
    """

    def __init__(
        self,
        status: int,
        message: str,
        field: str | None = None,
        retry_after: int | None = None,
        code: str | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.code = status, message, code
        self.field, self.retry_after = field, retry_after


class ContextFull(ApiError):
    """A conversation that leaves no room for a reply.

    size: its tokens with one for the reply, and those that there may be; None if it is so long that
    they were not counted.
    """

    def __init__(self, size: tuple[int, int] | None):
        text = "the conversation fills the policy's context"
        super().__init__(400, text, "messages", code=CONTEXT_FULL)
        self.size = size
