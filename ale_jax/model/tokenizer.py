"""Text and token ids: our byte-level BPE or any transformers tokenizer, and its chat format.

Tokens in, tokens out: only text that the policy did not write is ever tokenized here.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    trainers,
)

from ale_jax.model.chat_render import ChatRenderer
from ale_jax.model.piece_encoder import PieceEncoder
from ale_jax.model.slots import Message
from ale_jax.model.template_dialect import Dialect
from ale_jax.model.template_limit import rendered
from ale_jax.model.template_settings import (
    NO_SETTINGS,
    TODAY,
    TemplateSettings,
    check_variables,
    variables_of,
)
from ale_jax.model.tokenizer_folder import named_templates, read_folder
from ale_jax.model.tokenizer_library import transformers
from ale_jax.model.vocabulary import byte_names, markers, stop_ids
from ale_jax.model.weights.hub import locate
from ale_jax.tagged_text import THINK

if TYPE_CHECKING:
    from llguidance import LLTokenizer
    from transformers import PreTrainedTokenizerFast

ChatMessage = dict[str, str]  # {"role": ..., "content": ...}, as chat templates want it

MAX_VARIED = 16  # of a tokenizer, with other variables of its template
END_OF_TURN = "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"
SPECIAL = (END_OF_TEXT, "<|im_start|>", END_OF_TURN)
# One token each, but ordinary text that decoding keeps, as in Qwen3's vocabulary.
MARKERS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<tools>",
    "</tools>",
)

# Text that the chat format repeats in every turn (a role's line, a tool call's JSON) is one piece,
# which BPE turns into one token. The other pieces are words, single digits, and single other
# characters. A name therefore has the same tokens wherever it occurs, and copying it is easy to
# learn. A role's line ends a piece, whatever follows it: the policy's reply is written behind it.
_PIECES = (
    r'\A(?:system|user|assistant)\n|\n\{"name": "[a-z]+", "arguments": \{"[a-z]+": "|"\}\}\n'
    r"|\.[a-z]{2,4}\b|[A-Za-z]+|[0-9]|\s|[^\sA-Za-z0-9]"
)

# Of several templates, the names of those that transformers uses with tools and without.
TOOL_USE, DEFAULT = "tool_use", "default"


def train_bpe(messages: Iterable[ChatMessage], vocab_size: int) -> PreTrainedTokenizerFast:
    """Returns a byte-level BPE of at most `vocab_size` tokens, learned from the text of
    conversations.

    It carries the chat template of this package.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(MARKERS),
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(_training_texts(messages), trainer)
    bpe.add_tokens(list(MARKERS))
    return _with_template(bpe)


def tools_text(tools: Sequence[Mapping[str, Any]]) -> str:
    """Returns what the chat template of this package tells of the tools that a conversation
    offers."""
    system = [{"role": "system", "content": ""}]
    tokenizer = _with_template(Tokenizer(models.BPE()))
    text = tokenizer.apply_chat_template(
        system, tools=[dict(tool) for tool in tools], tokenize=False
    )
    assert isinstance(text, str)
    text = re.sub("|".join(map(re.escape, SPECIAL)), "", text)
    return text.removeprefix("system").strip()


def _with_template(bpe: Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer = transformers().PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=END_OF_TURN, pad_token=END_OF_TEXT
    )
    tokenizer.chat_template = Path(__file__).with_name("chat_template.jinja").read_text()
    return tokenizer


def _training_texts(messages: Iterable[ChatMessage]) -> Iterator[str]:
    """The text between special tokens and markers when these messages are rendered."""
    markers = re.compile("|".join(map(re.escape, MARKERS)))
    for message in messages:
        yield "user\n" if message["role"] == "tool" else f"{message['role']}\n"
        yield from filter(None, markers.split(message["content"]))


class ChatTokenizer:
    """A transformers tokenizer and its chat template. Thread-safe."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        tools: list[dict] | None = None,
        settings: TemplateSettings = NO_SETTINGS,
    ):
        self._tokenizer = tokenizer
        self._settings = settings
        self._rust = tokenizer.backend_tokenizer
        self._rust.no_truncation()  # which its file may ask for
        self._rust.no_padding()
        self._tools = tools
        self._lock = threading.Lock()
        added = tokenizer.added_tokens_decoder
        self._added_ids = frozenset(added)
        self._special = {number: token.content for number, token in added.items() if token.special}
        self._encoder = PieceEncoder(self._rust, markers(tokenizer), self._lock)
        self.variables = variables_of(self.chat_template)
        for template in named_templates(tokenizer).values():
            variables_of(template)  # raises for what must not be rendered
        self._is_dated = TODAY in self.chat_template
        self._make_renderers()
        self._varied = lru_cache(MAX_VARIED)(self._with_variables)
        self._byte_names = byte_names(self._rust.decoder)
        self.vocab_size = len(tokenizer)
        ends = self._renderer.ends
        self._turn_ends = set(map(self._rust.token_to_id, ends.names if ends.closes else ()))
        self.stop_ids = stop_ids(tokenizer, ends, settings.stop_ids)

    @classmethod
    def load(
        cls,
        path: str | Path,
        tools: list[dict] | None = None,
        variables: Mapping[str, Any] | None = None,
        date: str = "",
    ) -> ChatTokenizer:
        """Loads the tokenizer of a folder in transformers' layout, of a .gguf file, or of the model
        of a name (see hub.locate). variables, date: as of `TemplateSettings`, instead of those that
        it was saved with.

        ValueError if there is none, or it has no chat template that can be used.
        """
        path = locate(path, weights=False)
        tokenizer = read_folder(path)
        if not tokenizer.chat_template:
            raise ValueError(f"the tokenizer in {path} has no chat template: add one")
        names = sorted(named_templates(tokenizer))
        if names and DEFAULT not in names:
            raise ValueError(
                f"the tokenizer in {path} has the chat templates {names}, and none is called "
                f"{DEFAULT!r}: rename the one for conversations without tools"
            )
        try:
            settings = TemplateSettings.of_folder(path).with_variables(variables or {})
            settings = dataclasses.replace(settings, date=date or settings.date)
            return cls(tokenizer, tools, settings)
        except ValueError as error:
            raise ValueError(f"the tokenizer in {path}: {error}") from error

    def with_variables(self, variables: Mapping[str, Any]) -> ChatTokenizer:
        """Returns the tokenizer with more variables of its chat template. ValueError, with the
        name, if the template does not read one."""
        return self._varied(json.dumps(variables, sort_keys=True)) if variables else self

    def _with_variables(self, variables: str) -> ChatTokenizer:
        """variables: as JSON."""
        other = copy.copy(self)
        other._settings = self._settings.with_variables(json.loads(variables))
        other._make_renderers()
        return other

    def _make_renderers(self) -> None:
        names, names_marker = self._special.values(), self._encoder.names_marker
        check_variables(self._settings.variables, self.variables, names_marker)
        self._adapted = lru_cache(self._settings.adapted)
        self._renderer = ChatRenderer(self._render, names, names_marker)
        self._tool_renderer = self._renderer
        if TOOL_USE in named_templates(self._tokenizer):
            self._tool_renderer = ChatRenderer(self._render_tool_use, names, names_marker)

    @property
    def opens_thoughts(self) -> bool:
        """Whether the prompt opens the thoughts of a reply, which then begins within them."""
        return self._renderer.prompt.rstrip().endswith(THINK)

    @property
    def dialect(self) -> Dialect:
        """How the chat template takes messages and tools."""
        return self._tool_renderer.dialect

    @property
    def chat_template(self) -> str:
        """Of several, that for tools, if there is one."""
        named = named_templates(self._tokenizer)
        return named.get(TOOL_USE, named[DEFAULT]) if named else self._tokenizer.chat_template

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """Special tokens, and others that are one token each, such as those around a tool call."""
        added = self._tokenizer.added_tokens_decoder
        return {token.content: number for number, token in added.items()}

    @cached_property
    def grammar_vocabulary(self) -> LLTokenizer:
        """As grammars need it. Takes seconds for a large vocabulary."""
        from llguidance.hf import from_tokenizer  # imports transformers, too

        ends = list(self.stop_ids)
        return from_tokenizer(self._tokenizer, self.vocab_size, ends)

    @cached_property
    def longest_token(self) -> int:
        """Characters that one token stands for, at most."""
        return max(map(len, self._tokenizer.get_vocab()))

    def check_fits(self, model_vocab_size: int) -> None:
        """Raises ValueError if the model has no embedding for some token. It may have more
        embeddings than tokens."""
        if self.vocab_size > model_vocab_size:
            raise ValueError(
                f"the tokenizer has {self.vocab_size} tokens, the model's vocabulary is "
                f"{model_vocab_size}: take the tokenizer that the model was trained with"
            )

    def save(self, path: str | Path) -> None:
        """Writes the tokenizer to a folder, with its settings: the date of today, if the template
        writes one, and the model's stop tokens."""
        self._tokenizer.save_pretrained(str(path))
        settings = self._settings.dated() if self._is_dated else self._settings
        if settings != NO_SETTINGS:
            settings.save(Path(path))

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Returns the text of `ids`, special tokens left out; undecodable bytes become U+FFFD."""
        with self._lock:
            text = self._tokenizer.decode(np.asarray(ids).tolist(), skip_special_tokens=True)
        assert isinstance(text, str)
        return text

    def token_bytes(self, id: int) -> bytes | None:
        """Returns what a token stands for, though it be a part of a character, which has no text.
        None if its name does not tell: then `decode` gives its text."""
        with self._lock:
            name = None if id in self._added_ids else self._rust.id_to_token(int(id))
        if not name:
            return None
        if name in self._byte_names:
            return self._byte_names[name]
        if any(letter not in self._byte_names for letter in name):
            return None
        return b"".join(self._byte_names[letter] for letter in name)

    def pieces(self, ids: Sequence[int] | np.ndarray) -> Iterator[tuple[str, bool]]:
        """Yields the text of `ids` in pieces: each special token that does not end a reply, by its
        name, and what is between them. Says of each whether it is a special token."""
        between: list[int] = []
        for each in np.asarray(ids).tolist():
            if each not in self._special:
                between.append(each)
                continue
            yield self.decode(between), False
            between = []
            if each not in self.stop_ids:
                yield self._special[each], True
        yield self.decode(between), False

    def prompt_ids(
        self,
        new_messages: Sequence[Message],
        first: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> np.ndarray:
        """Returns the ids that continue a conversation by `new_messages`, up to the policy's next
        token.

        first: the conversation starts here; otherwise the messages follow a reply of the policy
        that ended with its end-of-turn token. tools: those that it offers; None for those of the
        tokenizer.
        """
        tools = (self._tools if tools is None else tools) or None
        if first:
            return self._encoder.ids_of(self._renderer_of(tools).first(new_messages, tools))
        return self.following_ids(new_messages, self.stop_ids[0], tools=tools)

    def following_ids(
        self,
        messages: Sequence[Message],
        last: int,
        calls: Sequence[Message] = (),
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> np.ndarray:
        """Returns the ids that continue a conversation after a reply, up to the policy's next
        token. Where the reply has no end of its turn, it comes first.

        last: the reply's last id. calls: of the reply, as the template takes them. tools: as for
        `prompt_ids`.
        """
        renderer = self._renderer_of(self._tools if tools is None else tools)
        ids = self._encoder.ids_of(renderer.following(messages, calls))
        # What ends a turn here may stand for what ends it within a conversation.
        is_end = last == ids[0] or {last, int(ids[0])} <= self._turn_ends
        return ids[1:] if is_end else ids

    def _renderer_of(self, tools: Sequence[Mapping[str, Any]] | None) -> ChatRenderer:
        return self._tool_renderer if tools else self._renderer

    def text_ids(self, text: str) -> np.ndarray:
        """Returns the ids of a text that may name special tokens."""
        return self._encoder.text_ids(text)

    def plain_ids(self, text: str) -> np.ndarray:
        """Returns the ids of a text, in which the names of special tokens are text."""
        return self._encoder.reply_ids(text, "")

    @property
    def end_of_text(self) -> int:
        """The token that stands between texts; the one that ends a turn, if there is no other."""
        return self.stop_ids[min(1, len(self.stop_ids) - 1)]

    def reply_ids(self, text: str) -> np.ndarray:
        """Returns the ids of a reply that the policy did not write (an oracle's), end of turn
        included."""
        ids = self._encoder.reply_ids(text, self._renderer.opening)
        return np.append(ids, self.stop_ids[0]).astype(np.int32)

    def turn_ids(self, message: Message) -> np.ndarray:
        """Returns the ids of a whole message of the policy's that it did not write here, with its
        thoughts and calls, as the template writes them, end of turn included.

        ValueError if the template refuses the message, or drops a part of it.
        """
        pieces, ends = self._renderer.reply(message), self._renderer.ends
        end = self._tokenizer.get_vocab()[ends.call if message.get("tool_calls") else ends.turn]
        if not any(self._renderer.names_special(piece.text) for piece in pieces if piece.own):
            text = "".join(piece.text for piece in pieces)
            ids = self._encoder.reply_ids(text, self._renderer.opening)
        else:
            ids = self._encoder.ids_of(pieces)
        return np.append(ids, end).astype(np.int32)

    def _render(self, messages: list[Message], tools: Any, add_generation_prompt: bool) -> str:
        template = self._adapted(self._tokenizer.get_chat_template(None, tools))

        def render() -> str:
            text = self._tokenizer.apply_chat_template(
                [*map(dict, messages)],
                tools=tools,
                chat_template=template,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
                **self._settings.variables,
            )
            assert isinstance(text, str)
            return text

        return rendered(render)

    def _render_tool_use(
        self, messages: list[Message], tools: Any, add_generation_prompt: bool
    ) -> str:
        """An empty list also selects the template for tools, which may not do without one."""
        return self._render(messages, tools or [], add_generation_prompt)
