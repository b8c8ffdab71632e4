"""How a byte-level vocabulary splits a text before it merges bytes, by llama.cpp's names for it.

A GGUF file holds only such a name. llama.cpp's own rules approximate those of the models' authors,
which are the ones here, as their tokenizer.json and transformers' tokenizers have them.
"""

from __future__ import annotations

import dataclasses

from tokenizers import Regex, normalizers, pre_tokenizers


@dataclasses.dataclass(frozen=True)
class Rules:
    """whole: what is a token as a whole needs no merges."""

    split: pre_tokenizers.PreTokenizer
    normalizer: normalizers.Normalizer | None = None
    whole: bool = False


def _by(*patterns: str) -> pre_tokenizers.PreTokenizer:
    """Splits by each pattern in turn, the pieces of one by the next."""
    steps = [pre_tokenizers.Split(Regex(each), behavior="isolated") for each in patterns]
    whole_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*steps, whole_bytes])


_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GAPS = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + _GAPS
_WORD = _ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_ONE_DIGIT, _THREE_DIGITS = _WORD + r"|\p{N}", _WORD + r"|\p{N}{1,3}"

# Words as in GPT-4o: they also begin where a capital follows a small letter.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = r"[^\r\n\p{L}\p{N}]?" + _UPPER
_CASED_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _GAPS


def _cased(ending: str, digits: str) -> str:
    words = f"{_CASED}*{_LOWER}+{ending}|{_CASED}+{_LOWER}*{ending}"
    return f"{words}|{digits}{_CASED_REST}"


_DEEPSEEK = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*" + _GAPS,
)
_QWEN35 = (
    _ENDINGS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _GAPS
)
_SEED = _ONE_DIGIT + r"| ?[^\s\p{L}\p{N}\r\n]+" + _GAPS

_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
_SINGLE_DIGITS = Rules(
    pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _GPT2])
)
_LLAMA3 = Rules(_by(_THREE_DIGITS + _REST), whole=True)
_GPT4 = Rules(_by(_THREE_DIGITS + _REST))
_GPT4O = Rules(_by(_cased(_ENDINGS + "?", r"\p{N}{1,3}")), whole=True)

RULES = {
    "qwen2": Rules(_by(_ONE_DIGIT + _REST), normalizers.NFC()),
    "qwen35": Rules(_by(_QWEN35), normalizers.NFC()),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "dbrx": _GPT4,
    "glm4": _GPT4,
    "chatglm-bpe": _GPT4,
    "gpt-4o": _GPT4O,
    "llama4": _GPT4O,
    "tekken": Rules(_by(_cased("", r"\p{N}")), whole=True),
    "deepseek-v3": Rules(_by(*_DEEPSEEK)),
    "seed-coder": Rules(_by(_SEED)),
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "olmo": Rules(_GPT2, normalizers.NFC()),
    "gpt-2": Rules(_GPT2),
    "default": Rules(_GPT2),  # a file without a name is old
}
