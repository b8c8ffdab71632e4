"""Text and token ids: our byte-level BPE or any transformers tokenizer, and its chat format.

Tokens in, tokens out: only text that the policy did not write is ever tokenized here.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    trainers,
)

from ale_jax.model.chat_render import ChatRenderer, Ends
from ale_jax.model.piece_encoder import PieceEncoder
from ale_jax.model.slots import Message
from ale_jax.model.tokenizer_library import transformers
from ale_jax.model.weights.gguf_tokenizer import read_tokenizer
from ale_jax.model.weights.hub import locate

if TYPE_CHECKING:
    from llguidance import LLTokenizer
    from transformers import PreTrainedTokenizerFast

ChatMessage = dict[str, str]  # {"role": ..., "content": ...}, as chat templates want it

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

OTHER_ENDS = (END_OF_TEXT, "<|end_of_text|>", "<|eom_id|>", "<|call|>")
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
    """The chat format over a transformers tokenizer whose template is ChatML-like (Qwen3, ours).

    Thread-safe.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, tools: list[dict] | None = None):
        self._tokenizer = tokenizer
        self._rust = tokenizer.backend_tokenizer
        self._rust.no_truncation()  # which its file may ask for
        self._rust.no_padding()
        self._tools = tools
        self._lock = threading.Lock()
        added = tokenizer.added_tokens_decoder
        self._added_ids = frozenset(added)
        self._special = {number: token.content for number, token in added.items() if token.special}
        self._encoder = PieceEncoder(self._rust, _markers(tokenizer), self._lock)
        names, names_marker = self._special.values(), self._encoder.names_marker
        self._renderer = ChatRenderer(self._render, names, names_marker)
        self._tool_renderer = self._renderer
        if TOOL_USE in _named_templates(tokenizer):
            self._tool_renderer = ChatRenderer(self._render_tool_use, names, names_marker)
        self._byte_names = _byte_names(self._rust.decoder)
        self.vocab_size = len(tokenizer)
        ends = self._renderer.ends
        self._turn_ends = set(map(self._rust.token_to_id, ends.names if ends.closes else ()))
        self.stop_ids = _stop_ids(tokenizer, self._renderer.ends)

    @classmethod
    def load(cls, path: str | Path, tools: list[dict] | None = None) -> ChatTokenizer:
        """Loads the tokenizer of a folder in transformers' layout, of a .gguf file, or of the model
        of a name (see hub.locate).

        ValueError if there is none, or it has no chat template that can be used.
        """
        path = locate(path, weights=False)
        if not (path.is_file() or (path / "tokenizer.json").is_file()):
            raise ValueError(
                f"no tokenizer.json in {path}: give a folder that transformers can load, "
                "a .gguf file or a model's name, ORGANIZATION/NAME"
            )
        try:
            tokenizer = _read(path)
        except Exception as error:  # a damaged file can raise any type of error
            raise ValueError(f"{path}: its tokenizer cannot be read: {error!s:.200}") from error
        if not tokenizer.chat_template:
            raise ValueError(f"the tokenizer in {path} has no chat template: add one")
        names = sorted(_named_templates(tokenizer))
        if names and DEFAULT not in names:
            raise ValueError(
                f"the tokenizer in {path} has the chat templates {names}, and none is called "
                f"{DEFAULT!r}: rename the one for conversations without tools"
            )
        try:
            return cls(tokenizer, tools)
        except ValueError as error:
            raise ValueError(f"the tokenizer in {path}: {error}") from error

    @property
    def chat_template(self) -> str:
        """Of several, that for tools, if there is one."""
        named = _named_templates(self._tokenizer)
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
        self._tokenizer.save_pretrained(str(path))

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
        text = self._tokenizer.apply_chat_template(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
        )
        assert isinstance(text, str)
        return text

    def _render_tool_use(
        self, messages: list[Message], tools: Any, add_generation_prompt: bool
    ) -> str:
        """An empty list also selects the template for tools, which may not do without one."""
        return self._render(messages, tools or [], add_generation_prompt)


def _read(path: Path) -> PreTrainedTokenizerFast:
    if path.is_file():
        return read_tokenizer(path)
    found = transformers().AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    if not isinstance(found, transformers().PreTrainedTokenizerFast):
        raise ValueError("it is not written for the tokenizers library")
    return found


def _named_templates(tokenizer: PreTrainedTokenizerFast) -> Mapping[str, str]:
    """The chat templates by name, if there are several."""
    template = tokenizer.chat_template
    return template if isinstance(template, dict) else {}


def _markers(tokenizer: PreTrainedTokenizerFast) -> dict[int, AddedToken]:
    """The added tokens, special or not. Those of one letter or of white space are a part of the
    vocabulary, which all texts may use."""
    added = tokenizer.added_tokens_decoder
    return {n: token for n, token in added.items() if len(token.content.strip()) > 1}


def _byte_names(decoder: decoders.Decoder | None) -> dict[str, bytes]:
    """The names that a vocabulary has for single bytes. Byte-level ones write a letter for each,
    also in the names of longer tokens; others, which fall back to bytes, have such as <0x0A>.

    The decoder is tried, as it may be a sequence of others.
    """
    if decoder and decoder.decode(["<0x41>"]) == "A":
        return {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}
    if not decoder or decoder.decode(["\u0120"]) != " ":
        return {}
    # Letters that can be printed stand for themselves, and those behind U+00FF for the rest.
    letters = pre_tokenizers.ByteLevel.alphabet()
    own = {letter: ord(letter) for letter in letters if ord(letter) < 256}
    others = sorted(set(range(256)) - set(own.values()))
    numbers = own | {chr(256 + place): byte for place, byte in enumerate(others)}
    return {letter: bytes([byte]) for letter, byte in numbers.items()}


def _stop_ids(tokenizer: PreTrainedTokenizerFast, ends: Ends) -> tuple[int, ...]:
    """The tokens that end a turn, and those that end a text or a call if there are such: Qwen ends
    its replies with either."""
    vocabulary = tokenizer.get_vocab()
    names = dict.fromkeys((ends.turn, ends.call, *OTHER_ENDS))
    return tuple(vocabulary[name] for name in names if name in vocabulary)
