"""Checks that run-tests.sh does only what our image and our pytest can reproduce.

The usual run-tests.sh fetches pytest from the network and runs it on one file. Our image contains
pytest, so that only the name of that file matters. A script that does anything else is refused, and
the error shows the line.
"""

from __future__ import annotations

import re

_FETCHES_PYTEST = re.compile(
    r"""
      set\ -[a-z]+(?:\ pipefail)?
    | apt-get\ update
    | apt-get\ install\ -y\ curl
    | curl\ -LsSf\ \S+/install\.sh\ \|\ sh
    | source\ \$HOME/\.local/bin/env
    | if\ \[\ "\$PWD"\ =\ "/"\ \];\ then
    | echo\ "Error:[^"$`]*"
    | exit\ 1
    | fi
    | uv\ init
    | uv\ venv
    | uv\ (?:add|pip\ install)\ pytest(?:==[\d.]+)?
    """,
    re.VERBOSE | re.IGNORECASE,
)
_RUNS_PYTEST = re.compile(
    r"""(?:uv\ run\ |python3?\ -m\ )?pytest\ "?(?:\$TEST_DIR|/tests)/([\w./-]+\.py)"?
    (?:\ -(?:rA|q|v))*""",
    re.VERBOSE,
)


def test_file_of(run_tests: str) -> str:
    """Returns the file on which the script runs pytest, as a path relative to tests/. ValueError if
    the script does anything else, or does not end with that."""
    *before, last = _lines(run_tests) or [""]
    for line in before:
        if not _FETCHES_PYTEST.fullmatch(line):
            raise ValueError(
                f"run-tests.sh does more than run pytest on a file of tests/: {line!r:.200}"
            )
    found = _RUNS_PYTEST.fullmatch(last)
    if not found:
        raise ValueError(f"run-tests.sh does not end by running pytest: {last!r:.200}")
    return found[1]


def _lines(text: str) -> list[str]:
    """Returns the lines without blank lines and comments."""
    stripped = (line.strip() for line in text.splitlines())
    return [line for line in stripped if line and not line.startswith("#")]
