"""The tokenizer of a GGUF file, as the model's authors have it in their tokenizer.json.

transformers can read it, too, but needs torch to do so, takes GPT-2's rules where it does not know
the file's, and adds tokens of GPT-2's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gguf import Keys, TokenType
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    processors,
)

from ale_jax.model.tokenizer_library import transformers
from ale_jax.model.weights.gguf_reader import read_gguf
from ale_jax.model.weights.gguf_rules import RULES, Rules

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_NAMES = Keys.Tokenizer
_SPACE = "\u2581"  # as SentencePiece writes it
_SPECIAL = {
    "bos_token": _NAMES.BOS_ID,
    "eos_token": _NAMES.EOS_ID,
    "unk_token": _NAMES.UNK_ID,
    "pad_token": _NAMES.PAD_ID,
}
# Far above those of any vocabulary, and few enough to be read within seconds.
LONGEST_TOKEN, MOST_LETTERS = 1024, 1 << 24
# What changes texts before they are split, in vocabularies that are not Llama's.
_OTHER_NORMALIZERS = (_NAMES.PRECOMPILED_CHARSMAP, _NAMES.REMOVE_EXTRA_WS)


def read_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """Returns the tokenizer of a file, with its chat template. ValueError if the file has none, or
    one by rules that are not known here."""
    fields = _fields(path)
    tokens = _tokens(fields)
    kinds = _per_token(fields, _NAMES.TOKEN_TYPE, tokens, TokenType.NORMAL)
    kind, rules = fields.get(_NAMES.MODEL), fields.get(_NAMES.PRE, "default")
    if kind == "llama":
        rust = _sentencepiece(tokens, kinds, fields)
    elif kind == "gpt2" and str(rules) in RULES:
        rust = _byte_level(tokens, fields, RULES[rules])
    else:
        raise ValueError(
            f"its kind {kind!r:.40}, {rules!r:.40} is not known, only 'llama', and 'gpt2' with "
            f"{', '.join(RULES)}: take a Hugging Face folder of the model"
        )
    rust.add_special_tokens(_added(tokens, kinds, TokenType.CONTROL))
    rust.add_tokens(_added(tokens, kinds, TokenType.USER_DEFINED))
    special = _special(fields, tokens)
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


def _tokens(fields: Mapping[str, Any]) -> list[str]:
    tokens = fields.get(_NAMES.LIST)
    if not tokens or not isinstance(tokens, list) or not all(isinstance(t, str) for t in tokens):
        raise ValueError(f"{_NAMES.LIST} is no list of tokens")
    if len(set(tokens)) < len(tokens):
        raise ValueError(f"{_NAMES.LIST}: a token occurs twice")
    if max(map(len, tokens)) > LONGEST_TOKEN or sum(map(len, tokens)) > MOST_LETTERS:
        raise ValueError(
            f"{_NAMES.LIST}: a token of more than {LONGEST_TOKEN} letters, or more than "
            f"{MOST_LETTERS} together: no model has that"
        )
    return tokens


def _per_token(
    fields: Mapping[str, Any], name: str, tokens: Sequence[str], default: float | None = None
) -> list[Any]:
    """A number for each token. default: that of all, if the file has none."""
    values = fields.get(name, None if default is None else [default] * len(tokens))
    numbers = isinstance(values, list) and all(type(each) is not str for each in values)
    if not numbers or len(values) != len(tokens) or not all(map(math.isfinite, values)):
        raise ValueError(f"{name} must hold a number for each of the {len(tokens)} tokens")
    return values


def _special(fields: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, str]:
    """The tokens of certain meanings, as transformers calls them."""
    found = {}
    for name, field in _SPECIAL.items():
        number = fields.get(field)
        if number is None:
            continue
        if type(number) is not int or not 0 <= number < len(tokens):
            raise ValueError(f"{field} {number!r:.40} is the number of no token")
        found[name] = tokens[number]
    return found


def _added(tokens: Sequence[str], kinds: Sequence[int], wanted: TokenType) -> list[AddedToken]:
    return [
        AddedToken(token, normalized=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind == wanted
    ]


def _numbered(tokens: Sequence[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}


def _byte_level(tokens: Sequence[str], fields: Mapping[str, Any], rules: Rules) -> Tokenizer:
    merges = [tuple(merge.split(" ")) for merge in fields.get(_NAMES.MERGES, [])]
    rust = Tokenizer(models.BPE(_numbered(tokens), merges, ignore_merges=rules.whole))
    rust.pre_tokenizer, rust.decoder = rules.split, decoders.ByteLevel()
    if rules.normalizer:
        rust.normalizer = rules.normalizer
    return rust


def _sentencepiece(
    tokens: Sequence[str], kinds: Sequence[int], fields: Mapping[str, Any]
) -> Tokenizer:
    """A vocabulary as Llama 2's, whose scores say which merge comes first."""
    for name in filter(fields.get, _OTHER_NORMALIZERS):
        raise ValueError(f"{name} is not supported: take a Hugging Face folder of the model")
    ids = _numbered(tokens)
    plain = [n for n, kind in enumerate(kinds) if kind == TokenType.NORMAL]
    scores, words = _per_token(fields, _NAMES.SCORES, tokens), {tokens[n] for n in plain}
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
