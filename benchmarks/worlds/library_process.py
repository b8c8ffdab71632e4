"""A process of a library's own Python, which plays its tasks without our bridge."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any


def answers(
    python: str, script: Path, arguments: Sequence[str], questions: Iterable[Any]
) -> Iterator[Any]:
    """Yields what `script` answers to each question, both as lines of JSON."""
    with subprocess.Popen(
        [os.path.abspath(python), "-P", str(script), *arguments],
        env={**os.environ, "PYTHONHASHSEED": "0"},  # as in the bridge: sets have no other order
        cwd=tempfile.gettempdir(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin and process.stdout
        for question in questions:
            print(json.dumps(question), file=process.stdin, flush=True)
            yield json.loads(process.stdout.readline())
