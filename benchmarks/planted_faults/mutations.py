"""The places of a source text where a fault can be planted, and the text with the fault.

Every fault replaces one segment of bytes, and the rest of the file stays as it is. Text that no
test should have to notice is left out: annotations, flags of dataclasses, docstrings, messages,
TYPE_CHECKING and __main__ blocks, and durations (STOP_S = 1.0), as no test asserts a wall time.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from types import CodeType
from typing import Any

COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
ARITHMETIC = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
}
BOOLEAN = {ast.And: ("and", "or"), ast.Or: ("or", "and")}
COMMUTATIVE = ("max", "min", "maximum", "minimum")
ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
CLOCKS = ("time.time()", "time.monotonic()")
LOGGERS = ("log", "logger", "logging", "warnings")
SKIPPED_CONDITIONS = ("TYPE_CHECKING", "typing.TYPE_CHECKING", "__name__ == '__main__'")
SKIPPED_FIELDS = {"annotation", "returns", "type_comment"}


@dataclasses.dataclass(frozen=True, order=True)
class Mutation:
    """Bytes start to end of a file become `after`. line: where they start, from 1."""

    start: int
    end: int
    line: int
    kind: str
    before: str
    after: str

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.end :]


def mutations(source: bytes) -> list[Mutation]:
    """All faults of a file, in the order of their places. Bytecode is not compared here."""
    return sorted(set(_Places(source).below(ast.parse(source))))


def changes_bytecode(source: bytes, mutated: bytes) -> bool:
    """False also for a text that does not compile, which no test is needed to notice."""
    try:
        code = compile(mutated, "<mutated>", "exec")
    except SyntaxError:
        return False
    return _content(code) != _content(compile(source, "<mutated>", "exec"))


def _content(code: CodeType) -> tuple[Any, ...]:
    # Positions are left out. Constants are compared by text: 1 == True, but they are not the same.
    constants = [
        _content(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts
    ]
    return (
        *(code.co_name, code.co_code, code.co_names, code.co_varnames, code.co_freevars),
        *(code.co_argcount, code.co_kwonlyargcount, code.co_exceptiontable),
        *constants,
    )


class _Places:
    def __init__(self, source: bytes):
        self.source = source
        self.line_starts = [0]
        for line in source.splitlines(keepends=True):
            self.line_starts.append(self.line_starts[-1] + len(line))

    def below(self, node: ast.AST) -> Iterator[Mutation]:
        # Nodes inside f-strings have no exact positions before Python 3.12, and are mostly
        # messages.
        if isinstance(node, ast.JoinedStr) or _is_skipped_block(node) or _is_logging(node):
            return
        if _is_dataclass_flags(node) or _is_duration(node):
            return
        yield from self.at(node)
        for field, value in ast.iter_fields(node):
            if field in SKIPPED_FIELDS or (isinstance(node, ast.Assert) and field == "msg"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self.below(child)

    def at(self, node: ast.AST) -> Iterator[Mutation]:
        match node:
            case ast.Compare():
                operands = [node.left, *node.comparators]
                for left, operator, right in zip(operands, node.ops, operands[1:]):
                    if isinstance(operator, ORDER) and (_is_clock(left) or _is_clock(right)):
                        continue  # the boundary is a moment that never comes
                    yield from self.between(left, right, "comparison", COMPARISONS[type(operator)])
            case ast.BinOp() if type(node.op) in ARITHMETIC and not _is_text(node):
                sign = ARITHMETIC[type(node.op)]
                yield from self.between(node.left, node.right, "arithmetic", sign)
            case ast.BoolOp():
                for left, right in zip(node.values, node.values[1:]):
                    yield from self.between(left, right, "boolean", BOOLEAN[type(node.op)])
            case ast.UnaryOp(op=ast.Not()):
                start, end = self.span(node)
                text = self.source[start:end].decode()
                yield self.replace(start, end, "boolean", text.removeprefix("not").lstrip())
            case ast.Constant(value=bool() | int() | float()):
                value = node.value
                changed = not value if isinstance(value, bool) else value + 1
                yield self.replace(*self.span(node), "constant", repr(changed))
            case ast.Expr() | ast.AugAssign() if not _is_constant(node):
                yield self.replace(*self.span(node), "removed statement", "pass")
            case ast.Return(value=ast.expr() as value):
                yield self.replace(*self.span(value), "returned value", "None")
            case ast.If() | ast.IfExp():
                start, end = self.span(node.test)
                negated = f"not ({self.source[start:end].decode()})"
                yield self.replace(start, end, "negated condition", negated)
            case ast.Call(args=[first, second]) if _may_swap(node.func, first, second):
                (start, a_end), (b_start, end) = self.span(first), self.span(second)
                swapped = self.source[b_start:end] + self.source[a_end:b_start]
                swapped += self.source[start:a_end]
                yield self.replace(start, end, "swapped arguments", swapped.decode())

    def between(
        self, left: ast.expr, right: ast.expr, kind: str, operator: tuple[str, str]
    ) -> Iterator[Mutation]:
        """The operator between two operands, where brackets and line breaks may stand too."""
        start, end = self.span(left)[1], self.span(right)[0]
        before, after = operator
        gap = self.source[start:end].decode()
        if gap.count(before) == 1 and "#" not in gap:
            at = start + len(gap.partition(before)[0].encode())
            yield self.replace(at, at + len(before), kind, after)

    def replace(self, start: int, end: int, kind: str, after: str) -> Mutation:
        before = self.source[start:end].decode()
        line = self.source.count(b"\n", 0, start) + 1
        return Mutation(start, end, line, kind, before, after)

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        return (
            self.line_starts[node.lineno - 1] + node.col_offset,
            self.line_starts[node.end_lineno - 1] + node.end_col_offset,
        )


def _is_skipped_block(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in SKIPPED_CONDITIONS


def _is_dataclass_flags(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "dataclasses.dataclass"


def _is_duration(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith("_S")


def _is_clock(node: ast.expr) -> bool:
    return ast.unparse(node) in CLOCKS


def _is_logging(node: ast.AST) -> bool:
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    owner = ast.unparse(node.value.func).rpartition(".")[0]
    return owner.rpartition(".")[2].strip("_").lower() in LOGGERS


def _is_constant(node: ast.Expr | ast.AugAssign) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_text(node: ast.BinOp) -> bool:
    """The sum of a message's parts, which no other operator takes."""
    return any(_is_string(side) for side in (node.left, node.right))


def _is_string(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _may_swap(function: ast.expr, first: ast.expr, second: ast.expr) -> bool:
    if ast.unparse(function).rpartition(".")[2] in COMMUTATIVE:
        return False
    return not any(isinstance(each, ast.Starred) for each in (first, second))
