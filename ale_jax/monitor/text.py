"""Makes untrusted text, which a policy or a sandbox wrote, safe to show."""

from __future__ import annotations

import re

# Terminal escapes, C1 controls, bidirectional marks that reorder text, and lone surrogates, which
# cannot be written as UTF-8. Newline and tab are kept.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str) -> str:
    """Returns `text` with every control character replaced by a visible one."""
    return _UNSEEN.sub(lambda match: _picture(ord(match[0])), text)


def one_line(text: str, limit: int) -> str:
    """Returns `text` on one line of at most `limit` characters, with control characters
    replaced."""
    line = " ".join(visible(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def clip(text: str, limit: int) -> str:
    """Returns `text` with its middle replaced by a note if it is longer than `limit` characters.

    Head and tail are kept, because a reader looks for the start of a command and its last error.
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
