"""OpenAI's API of text completions: the policy goes on with a text, without a chat template."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Annotated, Any

from pydantic import Field

from ale_jax.gateway.api.openai_chat import DONE, sse, usage
from ale_jax.gateway.api.openai_chat import error as chat_error
from ale_jax.gateway.api.openai_fields import MAX_REPLIES, MAX_TOP_LOGPROBS, SamplingFields
from ale_jax.gateway.requests import ApiError, ChatRequest, ChatResult, Choice, TokenLogprob

MAX_TOKENS = 16  # where a request does not say, as OpenAI has it

Ids = list[Annotated[int, Field(ge=0, lt=2**31)]]


class CompletionsBody(SamplingFields):
    """A request. Fields that are not listed are ignored."""

    prompt: str | Ids | Annotated[list[str] | list[Ids], Field(max_length=MAX_REPLIES)]
    max_tokens: Annotated[int, Field(ge=1)] = MAX_TOKENS
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    echo: bool = False
    suffix: str | None = None
    best_of: int | None = None


def completion_request(body: CompletionsBody) -> ChatRequest:
    """Translates a body of the API. ApiError (400) if it asks for what there is not."""
    if body.suffix:
        raise ApiError(
            400, "the policy writes what follows a text, not what precedes one", "suffix"
        )
    if body.best_of not in (None, body.n):
        raise ApiError(400, "all replies are given: best_of must be n", "best_of")
    if body.echo and body.logprobs is not None:
        raise ApiError(400, "log-probabilities are those of replies, not of a prompt", "echo")
    prompts = _prompts(body.prompt)
    if not prompts or len(prompts) * body.n > MAX_REPLIES:
        raise ApiError(400, f"prompts times n must be from 1 to {MAX_REPLIES}", "prompt")
    return ChatRequest(
        model=body.model,
        messages=(),
        options=body.options(body.max_tokens, body.logprobs),
        stream=body.stream,
        with_usage=body.with_usage,
        prompts=prompts,
    )


def echoes(body: CompletionsBody) -> tuple[str, ...]:
    """Returns what each reply of the request begins with. ApiError (400) for a prompt without a
    text."""
    prompts = _prompts(body.prompt)
    if not body.echo:
        return ("",) * (len(prompts) * body.n)
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if len(texts) < len(prompts):
        raise ApiError(400, "only a text can be echoed, and ids are none", "echo")
    return tuple(text for text in texts for _ in range(body.n))


def completion(result: ChatResult, echoed: Sequence[str]) -> dict[str, Any]:
    choices = [
        _choice(number, before + choice.message.content, choice)
        for number, (before, choice) in enumerate(zip(echoed, result.choices, strict=True))
    ]
    return _head(result) | {"choices": choices, "usage": usage(result.usage)}


class CompletionsEvents:
    """A streamed reply, as `gateway.streaming` wants it."""

    def __init__(self, body: CompletionsBody, echoed: Sequence[str]):
        self._with_usage, self._echoed = body.with_usage, echoed

    def start(self, head: ChatResult) -> Iterator[str]:
        for number, text in enumerate(self._echoed):
            if text:
                yield from self.content(head, number, text)

    def silence(self, head: ChatResult) -> Iterator[str]:
        return self.content(head, 0, "")

    def thoughts(self, head: ChatResult, number: int, more: str) -> Iterator[str]:
        return iter(())  # a text has none

    def content(self, head: ChatResult, number: int, more: str) -> Iterator[str]:
        yield sse(_head(head) | {"choices": [_choice(number, more, None)]})

    def end(self, result: ChatResult) -> Iterator[str]:
        for number, choice in enumerate(result.choices):
            yield sse(_head(result) | {"choices": [_choice(number, "", choice)]})
        if self._with_usage:
            yield sse(_head(result) | {"choices": [], "usage": usage(result.usage)})
        yield DONE

    def failed(self, refused: ApiError) -> str:
        return sse(chat_error(refused))


def _prompts(prompt: Any) -> tuple[str | list[int], ...]:
    is_one = isinstance(prompt, str) or (bool(prompt) and isinstance(prompt[0], int))
    return (prompt,) if is_one else tuple(prompt)


def _head(result: ChatResult) -> dict[str, Any]:
    return {
        "id": f"cmpl-{result.id}",
        "object": "text_completion",
        "created": result.created,
        "model": result.model,
    }


def _choice(number: int, text: str, choice: Choice | None) -> dict[str, Any]:
    """choice: None as long as the reply is being written."""
    return {
        "index": number,
        "text": text,
        "finish_reason": choice and choice.finish,
        "logprobs": choice and _logprobs(choice.logprobs),
    }


def _logprobs(tokens: Sequence[TokenLogprob] | None) -> dict[str, Any] | None:
    """text_offset: where a token's text begins, in the text of all of them."""
    if tokens is None:
        return None
    texts = [token.text for token in tokens]
    return {
        "tokens": texts,
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [{each.text: each.logprob for each in token.top} for token in tokens],
        "text_offset": list(accumulate(map(len, texts), initial=0))[:-1],
    }
