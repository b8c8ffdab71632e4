"""From a reply and what a row holds to a reward. A reply is hostile: each check takes one answer
from it, so that a list of all that could be right earns nothing."""

from __future__ import annotations

import re
from collections.abc import Collection
from fractions import Fraction

THINK_END = "</think>"
BOX = "\\boxed{"
# What announces an answer: GSM8K's and MATH's marks, and words.
MARK = re.compile(r"####|\\boxed\{|(?i:\banswer[ \t]{0,4}:)|(?i:\banswer is\b:?)")
AROUND = " \t\r\n*_`$"
DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
NUMBER = re.compile(
    rf"(?:(?<![0-9)])[-−+])?\$?(?:{DIGITS}(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]{{1,3}})?"
    rf"(?: ?/ ?{DIGITS})?"
)
MAX_NUMBER = 300  # characters
FENCE = re.compile(r"^[ \t]*```[^\n`]*\n", re.M)
FENCE_END = re.compile(r"^[ \t]*```[ \t]*$", re.M)


def said(reply: str) -> str:
    """Returns a reply without the thoughts before it; "" if they have not ended."""
    _, ended, rest = reply.rpartition(THINK_END)
    return rest if ended or "<think>" not in reply else ""


def final(reply: str) -> str:
    """Returns what a reply gives as its answer: what its last mark announces, or else all of it."""
    rest = said(reply)
    marks = list(MARK.finditer(rest))
    if not marks:
        return rest.strip()
    after = rest[marks[-1].end() :]
    if marks[-1].group() == BOX:
        return _braced(after).strip()
    line = after.strip().partition("\n")[0]
    return line.strip(AROUND)


def exact(reply: str, answer: str) -> float:
    """Returns 1.0 if the reply, or what it announces, is the answer to the letter."""
    return float(answer.strip() in (said(reply).strip(), final(reply)))


def number(reply: str, answer: str) -> float:
    """Returns 1.0 if the last number of what the reply announces has the answer's value."""
    given, wanted = last_number(final(reply)), last_number(answer)
    return float(given is not None and given == wanted)


def last_number(text: str) -> Fraction | None:
    """Returns the value of the last number in a text: 1,234.5, -7, 3/4, 2e3; None without one."""
    found = NUMBER.findall(text)
    if not found or len(found[-1]) > MAX_NUMBER:
        return None
    plain = re.sub(r"[ ,$]", "", found[-1]).replace("−", "-").lstrip("+")
    whole, _, part = plain.partition("/")
    if part and not int(part):
        return None
    return Fraction(whole) / Fraction(part or 1)


def choice(reply: str, answer: str, choices: Collection[str]) -> float:
    """Returns 1.0 if the reply chooses the label `answer`. choices: all labels."""
    return float(chosen(final(reply), choices) == answer)


def chosen(text: str, labels: Collection[str]) -> str:
    """Returns the one label that the last line of a text names: at its beginning, as in "B.", or
    anywhere if it names no other; else ""."""
    one = "|".join(map(re.escape, sorted(labels, key=len, reverse=True)))
    line = text.strip().rpartition("\n")[2].strip(AROUND)
    if begins := re.match(rf"\(?({one})[).:](?!\w)", line):
        return begins.group(1)
    found = set(re.findall(rf"(?<!\w)({one})(?!\w)", line))
    return str(found.pop()) if len(found) == 1 else ""


def code(reply: str) -> str:
    """Returns the first block of code in a reply, or all of it where it has none."""
    rest = said(reply)
    begin = FENCE.search(rest)
    if not begin:
        return rest
    end = FENCE_END.search(rest, begin.end())
    return rest[begin.end() : end.start() if end else None]


def _braced(text: str) -> str:
    """Returns what stands before the brace that closes a group; "" if none does."""
    depth = 1
    for place, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[:place]
    return ""
