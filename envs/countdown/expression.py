"""A strict parser for arithmetic expressions that the policy writes, with exact values.

    sum     = product, any number of times: ("+" | "-") product
    product = factor, any number of times: ("*" | "/") factor
    factor  = digits | "(" sum ")"

There are no signs and no powers, so the value of a text of MAX_CHARS has at most that many digits.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction

MAX_CHARS = 200
MAX_DIGITS = 4
MAX_DEPTH = 16  # of parentheses: the parser is recursive

_PIECE = re.compile(r"\s*([0-9]+|[-+*/()])")
_Operation = Callable[[Fraction, Fraction], Fraction]
_SUM: Mapping[str, _Operation] = {"+": operator.add, "-": operator.sub}
_PRODUCT: Mapping[str, _Operation] = {"*": operator.mul, "/": operator.truediv}


class ExpressionError(ValueError):
    """The text is not an expression, or has no value; the message says why."""


def evaluate(text: str) -> tuple[Fraction, list[int]]:
    """The value of `text`, and the numbers in it from left to right.

    Raises:
      ExpressionError: `text` does not follow the grammar, is too long, or divides by 0.
    """
    if len(text) > MAX_CHARS:
        raise ExpressionError(f"longer than {MAX_CHARS} characters")
    parser = _Parser(_pieces(text))
    value = parser.sum(depth=0)
    if parser.next:
        raise ExpressionError(f"{parser.next!r} is out of place")
    return value, parser.numbers


def _pieces(text: str) -> list[str]:
    pieces, at, text = [], 0, text.rstrip()
    while at < len(text):
        found = _PIECE.match(text, at)
        if not found:
            raise ExpressionError(f"{text[at:].lstrip()[:1]!r} is neither digit nor + - * / ( )")
        pieces.append(found[1])
        at = found.end()
    return pieces


class _Parser:
    """Recursive descent: one method for each line of the grammar."""

    def __init__(self, pieces: list[str]):
        self._pieces = iter(pieces)
        self.numbers: list[int] = []
        self.next = ""  # the next piece; empty at the end
        self._advance()

    def _advance(self) -> str:
        taken, self.next = self.next, next(self._pieces, "")
        return taken

    def sum(self, depth: int) -> Fraction:
        value = self._product(depth)
        while self.next in _SUM:
            value = _SUM[self._advance()](value, self._product(depth))
        return value

    def _product(self, depth: int) -> Fraction:
        value = self._factor(depth)
        while self.next in _PRODUCT:
            operation = _PRODUCT[self._advance()]
            try:
                value = operation(value, self._factor(depth))
            except ZeroDivisionError:
                raise ExpressionError("division by 0") from None
        return value

    def _factor(self, depth: int) -> Fraction:
        piece = self._advance()
        if piece == "(":
            if depth == MAX_DEPTH:
                raise ExpressionError(f"more than {MAX_DEPTH} parentheses inside each other")
            value = self.sum(depth + 1)
            if self._advance() != ")":
                raise ExpressionError("')' is missing")
            return value
        if not piece.isdigit():  # only ASCII digits can occur in a piece
            raise ExpressionError(f"expected a number, not {piece or 'the end'!r}")
        if len(piece) > MAX_DIGITS:
            raise ExpressionError(f"a number has more than {MAX_DIGITS} digits")
        self.numbers.append(int(piece))
        return Fraction(self.numbers[-1])
