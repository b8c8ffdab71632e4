"""Text from outside, made fit to be shown: what a policy or a sandbox wrote is hostile."""

from __future__ import annotations

import re

# Terminal escapes, C1 controls, marks that reorder a line for its reader, and lone surrogates,
# which no UTF-8 file can hold. Newline and tab stay.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str) -> str:
    """`text` with every character that acts instead of showing replaced by one that shows."""
    return _UNSEEN.sub(lambda match: _picture(ord(match[0])), text)


def one_line(text: str, limit: int) -> str:
    """`text` made visible, on one line of at most `limit` characters."""
    line = " ".join(visible(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def clip(text: str, limit: int) -> str:
    """`text` with its middle left out when it is longer than `limit` characters, and a note of it.

    Head and tail stay: a command's first words and its last error are what a reader looks for.
    """
    if len(text) <= limit:
        return text
    head = limit // 2
    tail = limit - head
    return f"{text[:head]}\n[… {len(text) - limit} characters left out …]\n{text[-tail:]}"


def _picture(code: int) -> str:
    if code < 0x20:
        return chr(0x2400 + code)
    if 0xD800 <= code <= 0xDFFF:
        return "\ufffd"
    return f"‹U+{code:04X}›"
