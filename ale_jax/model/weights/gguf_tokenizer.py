"""The tokenizer of a GGUF file, as the model's authors have it in their tokenizer.json.

transformers can read it, too, but needs torch to do so, takes GPT-2's rules where it does not know
the file's, and adds tokens of GPT-2's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gguf import Keys, TokenType
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from ale_jax.model.tokenizer_library import transformers
from ale_jax.model.weights.gguf_reader import read_gguf

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_NAMES = Keys.Tokenizer
_SPACE = "\u2581"  # as SentencePiece writes it


def read_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """Returns the tokenizer of a file, with its chat template. ValueError if the file has none, or
    one by rules that are not known here."""
    fields = _fields(path)
    tokens, kinds = fields.get(_NAMES.LIST, []), fields.get(_NAMES.TOKEN_TYPE, [])
    kind, rules = fields.get(_NAMES.MODEL), fields.get(_NAMES.PRE, "default")
    if kind == "llama":
        rust = _sentencepiece(tokens, kinds, fields)
    elif kind == "gpt2" and rules in _RULES:
        rust = _byte_level(tokens, fields, _RULES[rules])
    else:
        raise ValueError(
            f"its kind {kind!r:.40}, {rules!r:.40} is not known, only 'llama', and 'gpt2' with "
            f"{', '.join(_RULES)}: take a Hugging Face folder of the model"
        )
    rust.add_special_tokens(_added(tokens, kinds, TokenType.CONTROL))
    rust.add_tokens(_added(tokens, kinds, TokenType.USER_DEFINED))
    names = {
        "bos_token": _NAMES.BOS_ID,
        "eos_token": _NAMES.EOS_ID,
        "unk_token": _NAMES.UNK_ID,
        "pad_token": _NAMES.PAD_ID,
    }
    special = {name: tokens[fields[key]] for name, key in names.items() if key in fields}
    if "bos_token" in special and fields.get(_NAMES.ADD_BOS, kind == "llama"):
        bos = special["bos_token"]
        rust.post_processor = processors.TemplateProcessing(
            single=f"{bos}:0 $A:0", special_tokens=[(bos, fields[_NAMES.BOS_ID])]
        )
    tokenizer = transformers().PreTrainedTokenizerFast(tokenizer_object=rust, **special)
    tokenizer.chat_template = _chat_template(fields)
    return tokenizer


def _fields(path: Path) -> dict[str, Any]:
    found = read_gguf(path).fields.items()
    return {name: field.contents() for name, field in found if name.startswith("tokenizer.")}


def _chat_template(fields: Mapping[str, Any]) -> str | dict[str, str] | None:
    """The template, or several by their names."""
    default = fields.get(_NAMES.CHAT_TEMPLATE)
    names = fields.get(_NAMES.CHAT_TEMPLATES, [])
    others = {name: fields[_NAMES.CHAT_TEMPLATE_N.format(name=name)] for name in names}
    return {"default": default} | others if others and default else default


def _vocabulary(tokens: Sequence[str]) -> dict[str, int]:
    ids = {token: number for number, token in enumerate(tokens)}
    if not ids or len(ids) < len(tokens):
        raise ValueError("there are no tokens" if not ids else "a token occurs twice")
    return ids


def _added(tokens: Sequence[str], kinds: Sequence[int], wanted: TokenType) -> list[AddedToken]:
    return [
        AddedToken(token, normalized=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind == wanted
    ]


@dataclasses.dataclass(frozen=True)
class _Rules:
    """How a byte-level vocabulary splits a text before it merges. whole: what is a token as a whole
    needs no merges."""

    split: pre_tokenizers.PreTokenizer
    normalizer: normalizers.Normalizer | None = None
    whole: bool = False


def _by(words: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|NUMBER| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
_LLAMA3 = _Rules(_by(_WORDS.replace("NUMBER", r"\p{N}{1,3}")), whole=True)
_SINGLE_DIGITS = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _GPT2])
# By llama.cpp's names. A file without one is old.
_RULES = {
    "qwen2": _Rules(_by(_WORDS.replace("NUMBER", r"\p{N}")), normalizers.NFC()),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "smollm": _Rules(_SINGLE_DIGITS),
    "gpt-2": _Rules(_GPT2),
    "default": _Rules(_GPT2),
}


def _byte_level(tokens: Sequence[str], fields: Mapping[str, Any], rules: _Rules) -> Tokenizer:
    merges = [tuple(merge.split(" ")) for merge in fields.get(_NAMES.MERGES, [])]
    rust = Tokenizer(models.BPE(_vocabulary(tokens), merges, ignore_merges=rules.whole))
    rust.pre_tokenizer, rust.decoder = rules.split, decoders.ByteLevel()
    if rules.normalizer:
        rust.normalizer = rules.normalizer
    return rust


def _sentencepiece(
    tokens: Sequence[str], kinds: Sequence[int], fields: Mapping[str, Any]
) -> Tokenizer:
    """A vocabulary as Llama 2's, whose scores say which merge comes first."""
    ids = _vocabulary(tokens)
    plain = [n for n, kind in enumerate(kinds) if kind == TokenType.NORMAL]
    scores, words = fields[_NAMES.SCORES], {tokens[n] for n in plain}
    pairs = [(scores[n], n, pair) for n in plain for pair in _halves(tokens[n], words)]
    pairs.sort(key=lambda each: (-each[0], each[1], *map(ids.__getitem__, each[2])))
    unknown = next((t for t, kind in zip(tokens, kinds) if kind == TokenType.UNKNOWN), None)
    merges = [pair for _, _, pair in pairs]
    rust = Tokenizer(models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", _SPACE)]
    ends: list[decoders.Decoder] = [
        decoders.Replace(_SPACE, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if fields.get(_NAMES.ADD_PREFIX, True):
        spaces.insert(0, normalizers.Prepend(_SPACE))
        ends.append(decoders.Strip(" ", 1, 0))
    rust.normalizer, rust.decoder = normalizers.Sequence(spaces), decoders.Sequence(ends)
    return rust


def _halves(token: str, words: set[str]) -> Iterator[tuple[str, str]]:
    cuts = ((token[:n], token[n:]) for n in range(1, len(token)))
    return (pair for pair in cuts if words.issuperset(pair))
