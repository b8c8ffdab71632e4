"""The gateway in front of an engine: how its model writes, and what it can be asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from ale_jax.config.engine import Sampling
from ale_jax.engine.request import Guide, InferenceEngine, RequestOptions, Sampled, StopChecker
from ale_jax.gateway.custody.constraints import Grammar, GrammarAndBias, LogitsBias
from ale_jax.gateway.custody.sampling_masks import MaskTable
from ale_jax.gateway.custody.token_tree import NO_VARIABLES
from ale_jax.gateway.formats.families import format_named, format_of
from ale_jax.gateway.formats.reply import plain_text, special
from ale_jax.gateway.json_values import value_or_text
from ale_jax.gateway.language import Language
from ale_jax.gateway.messages import ChatMessage, ToolCall
from ale_jax.gateway.requests import Prompt, SampleOptions
from ale_jax.model.tokenizer import ChatTokenizer


class EnginePolicy:
    """An engine, as an episode of the gateway needs it."""

    def __init__(
        self,
        engine: InferenceEngine,
        tokenizer: ChatTokenizer,
        sampling: Sampling,
        max_tokens: int,
        masks: MaskTable | None = None,
        context: int | None = None,
        adapter: int = 0,
    ):
        """sampling, max_tokens: of a reply, where a request does not say. masks: of the episode, if
        it is trained on. context: tokens of a conversation; None for what the engine allows.
        adapter: that all conversations use, of several; 0 for none."""
        self._engine, self._tokenizer, self._adapter = engine, tokenizer, adapter
        # What cuts leave is a part of what a grammar allows, and takes its place.
        is_cut = masks is not None and masks.is_of_cuts
        self._left = masks if is_cut else None
        self._allowed = None if is_cut else masks
        self._sampling, self._max_tokens, self._context = sampling, max_tokens, context

    def open(self) -> int:
        return self._engine.open(self._adapter)

    def reply(
        self,
        conversation: int,
        new_ids: np.ndarray,
        options: SampleOptions,
        key: np.ndarray,
        stop_checker: StopChecker | None,
    ) -> Future[Sampled]:
        """Asks the engine for a reply. ValueError for options that it cannot honour."""
        asked = {
            name: getattr(options, name) for name in ("temperature", "top_k", "top_p", "min_p")
        }
        asked = {name: value for name, value in asked.items() if value is not None}
        sampling = dataclasses.replace(self._sampling, **asked)
        top_logprobs = options.top_logprobs or 0
        request_options = RequestOptions(
            stop_checker,
            self._guide(options),
            top_logprobs,
            options.priority,
            self._left,
            self._context,
        )
        most = min(options.max_tokens or self._max_tokens, self._max_tokens)
        return self._engine.reply(conversation, new_ids, most, sampling, key, request_options)

    def end(self, conversation: int) -> None:
        self._engine.end(conversation)

    def _guide(self, options: SampleOptions) -> Guide | None:
        tokenizer, grammar = self._tokenizer, None
        if options.grammar:
            vocabulary = tokenizer.grammar_vocabulary
            stop_id = tokenizer.stop_ids[0]
            grammar = Grammar(vocabulary, options.grammar, stop_id, self._allowed)
        penalties = options.frequency_penalty, options.presence_penalty
        if not (any(penalties) or options.logit_bias or options.min_tokens):
            return grammar
        bias = LogitsBias(
            self._engine.vocab_size,
            *penalties,
            options.logit_bias,
            options.min_tokens,
            tokenizer.stop_ids,
        )
        return GrammarAndBias(grammar, bias) if grammar else bias


class ChatRender:
    """How a tokenizer's chat template writes messages, for the token tree."""

    def __init__(self, tokenizer: ChatTokenizer):
        self._tokenizer = tokenizer

    def __call__(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]],
        after: np.ndarray | None,
        reply: ChatMessage | None = None,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> np.ndarray:
        tokenizer = self._tokenizer.with_variables(variables) if variables else self._tokenizer
        shown, offered = list(map(for_template, messages)), list(tools) or None
        if after is None:
            return tokenizer.prompt_ids(shown, True, offered)
        calls = [_callfor_template(call) for call in reply.tool_calls] if reply else ()
        return tokenizer.following_ids(shown, int(after[-1]), calls, offered)


def language_of(tokenizer: ChatTokenizer) -> Language:
    tokens = dict(tokenizer.added_tokens)
    # Tools are told in words to a template that has no place for them (model.told_tools).
    has_calls = tokenizer.dialect.has_calls
    name = format_of(tokenizer.chat_template, tokens) if has_calls else "plain_json"

    def marked_text(ids: np.ndarray) -> str:
        pieces = tokenizer.pieces(ids)
        return "".join(special(text) if own else plain_text(text) for text, own in pieces)

    def prompt_ids(prompt: Prompt) -> np.ndarray:
        if isinstance(prompt, str):
            ids = tokenizer.text_ids(prompt)
        else:
            ids = np.asarray(prompt, np.int64)
        unknown = ids[(ids < 0) | (ids >= tokenizer.vocab_size)]
        if len(unknown):
            raise ValueError(f"there is no token {unknown[0]}: there are {tokenizer.vocab_size}")
        if not len(ids):
            raise ValueError("an empty prompt: there is nothing to go on with")
        return ids.astype(np.int32)

    return Language(
        format_named(name),
        marked_text,
        tokens,
        prompt_ids,
        tokenizer.token_bytes,
        tokenizer.variables,
        lambda variables: tokenizer.with_variables(variables).opens_thoughts,
    )


def for_template(message: ChatMessage) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        shown["reasoning_content"] = message.reasoning
    if message.tool_calls:
        shown["tool_calls"] = [_callfor_template(call) for call in message.tool_calls]
    if message.answers:
        shown["tool_call_id"] = message.answers
    return shown


def _callfor_template(call: ToolCall) -> dict[str, Any]:
    """Arguments that are no JSON are shown as the text that they are."""
    function = {"name": call.name, "arguments": value_or_text(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}
