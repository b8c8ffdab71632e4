"""What is asked of a tokenizer's vocabulary: its markers, its bytes, and how replies end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokenizers import AddedToken, decoders, pre_tokenizers

from ale_jax.model.chat_render import Ends

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Beside the end of a turn: of a text, or of a call.
OTHER_ENDS = ("<|endoftext|>", "<|end_of_text|>", "<|eom_id|>", "<|call|>")


def markers(tokenizer: PreTrainedTokenizerFast) -> dict[int, AddedToken]:
    """Returns the added tokens, special or not. Those of one letter or of white space are a part of
    the vocabulary, which all texts may use."""
    added = tokenizer.added_tokens_decoder
    return {n: token for n, token in added.items() if len(token.content.strip()) > 1}


def byte_names(decoder: decoders.Decoder | None) -> dict[str, bytes]:
    """Returns the names that a vocabulary has for single bytes. Byte-level ones write a letter for
    each, also in the names of longer tokens; others, which fall back to bytes, have such as <0x0A>.

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


def stop_ids(
    tokenizer: PreTrainedTokenizerFast, ends: Ends, others: Sequence[int]
) -> tuple[int, ...]:
    """Returns the tokens that end a turn, and those that end a text or a call if there are such:
    Qwen ends its replies with either. others: that a model's authors name. ValueError if one of
    these is no token."""
    vocabulary = tokenizer.get_vocab()
    names = dict.fromkeys((ends.turn, ends.call, *OTHER_ENDS))
    found = [vocabulary[name] for name in names if name in vocabulary]
    if unknown := [each for each in others if each >= len(tokenizer)]:
        raise ValueError(f"the stop token {unknown[0]} is none of {len(tokenizer)} tokens")
    return tuple(dict.fromkeys((*found, *others)))
