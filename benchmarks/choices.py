"""An option of the command line that names some of what a benchmark has, separated by commas."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection


def some_of(known: Collection[str]) -> Callable[[str], list[str]]:
    """A `type` for argparse, which refuses a name that is not among the known ones."""

    def parse(text: str) -> list[str]:
        for name in (names := text.split(",")):
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r}: choose among {', '.join(known)}")
        return names

    return parse
