"""Tables whose rows are pure function calls: one test for all rows, which names every one that
fails.

A test case costs several milliseconds of pytest's own, a line of the report, and a place in the
list that people read. A row that is one call of a pure function is not worth that.
"""

import functools
import inspect
from collections.abc import Callable, Iterable

import pytest


def each_row(names: str, rows: Iterable, ids: Iterable | Callable | None = None) -> Callable:
    """Calls the test for each row, with the arguments of `pytest.mark.parametrize`.

    names: of the test's arguments that a row holds, parted by commas. ids: one name for each row,
    or a function that makes it. Fixtures are made once for all rows, so a row must not change them.
    Raises an exception group of all rows that fail, each with its name as a note.
    """
    names = [name.strip() for name in names.split(",")]
    rows = list(rows)
    cells = [row if len(names) > 1 else [row] for row in rows]
    if ids is None or callable(ids):
        labels = ["-".join(str((ids or repr)(cell)) for cell in row) for row in cells]
    else:
        labels = list(map(str, ids))
    assert rows and len(labels) == len(rows), "a table needs rows, and a name for each"

    def decorate(test: Callable) -> Callable:
        @functools.wraps(test)
        def run_rows(**fixtures):
            failures = []
            for label, row in zip(labels, cells, strict=True):
                values = dict(zip(names, row, strict=True))
                try:
                    test(**fixtures, **values)
                except (Exception, pytest.fail.Exception) as failure:
                    failure.add_note(f"row: {label[:200]}")
                    failures.append(failure)
            if failures:
                raise BaseExceptionGroup(f"{len(failures)} of {len(rows)} rows", failures)

        signature = inspect.signature(test)
        others = [p for name, p in signature.parameters.items() if name not in names]
        run_rows.__signature__ = signature.replace(parameters=others)
        return run_rows

    return decorate
