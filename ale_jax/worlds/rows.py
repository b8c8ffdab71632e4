"""Families whose items are the lines of a file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ale_jax.files import parse_json
from ale_jax.worlds.finite import Finite, Row, divided
from ale_jax.worlds.items import EVAL, TRAIN, Name


@dataclasses.dataclass(frozen=True)
class Rows(Finite):
    """The lines of the jsonl file `path`, each an object, which is an item.

    eval_share: of the items, those that are only evaluated; their content chooses them. eval_path:
    the file that has them instead. name: the column that names items; where a line has none, it is
    named after file and line.

    Items that differ in their names alone are in the same split. Those that `eval_path` has, too,
    are left out of training.
    """

    eval_share: float = 0.1
    eval_path: str = ""
    name: str = "id"

    def __post_init__(self) -> None:
        if not 0.0 <= self.eval_share <= 1.0:
            raise ValueError(f"eval_share {self.eval_share} of {self.path} must be in [0, 1]")

    def digest(self) -> str:
        """Returns a digest of the files."""
        files = (file for part in self.parts() for file in part)
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()

    def read(self) -> Mapping[str, Mapping[Name, Row]]:
        """Returns the rows by split and name. ValueError, with the line, for one that is damaged,
        or named as an earlier one."""
        rows, *others = (self._read(files) for files in self.parts())
        contents = {name: self.content(row) for name, row in rows.items()}
        if not others:
            return divided(rows, contents, self.eval_share)
        (evaluated,) = others
        kept = set(map(self.content, evaluated.values()))
        return {TRAIN: {k: r for k, r in rows.items() if contents[k] not in kept}, EVAL: evaluated}

    def parts(self) -> Sequence[Sequence[Path]]:
        """Returns the files, and apart from them those of what is only evaluated, if files say."""
        return [[self.folder / path] for path in (self.path, self.eval_path) if path]

    def records(self, file: Path) -> Iterator[tuple[str, Any]]:
        """Yields the place of each row, and the row. ValueError, with that, for a damaged one."""
        for number, line in enumerate(file.read_bytes().splitlines(), 1):
            yield line_of(file, number, line)

    def content(self, row: Row) -> bytes:
        """Returns what an item says, its name apart."""
        told = {column: value for column, value in row.items() if column != self.name}
        return json.dumps(told, sort_keys=True, default=str).encode()

    def _read(self, files: Sequence[Path]) -> dict[Name, Row]:
        rows: dict[Name, Row] = {}
        for file in files:
            for number, (place, row) in enumerate(self.records(file), 1):
                if not isinstance(row, dict):
                    raise ValueError(f"{place}: {row!r:.80} is no object")
                named = row.get(self.name, f"{file.stem}:{number}")
                if not isinstance(named, Name):
                    raise ValueError(f"{place}: {self.name} {named!r:.80} must be text or a number")
                if named in rows:
                    raise ValueError(f"{place}: there are two items {named!r:.80}")
                rows[named] = row
        if files and not rows:
            raise ValueError(f"{', '.join(map(str, files))} has no items")
        return rows


def line_of(file: Path, number: int, line: bytes) -> tuple[str, Any]:
    """Returns the place of a line and what it says. ValueError, with that, if it is no JSON."""
    place = f"{file}, line {number}"
    try:
        return place, parse_json(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place}: {error}") from None
