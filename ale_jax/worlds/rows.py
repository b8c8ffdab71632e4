"""Families whose items are the lines of a file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

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
        return hashlib.sha256(b"".join(file.read_bytes() for file in self._files)).hexdigest()

    def read(self) -> Mapping[str, Mapping[Name, Row]]:
        """Returns the rows by split and name. ValueError, with the line, for one that is damaged,
        or named as an earlier one."""
        rows, *others = (_read(file, self.name) for file in self._files)
        contents = {name: self._content(row) for name, row in rows.items()}
        if not others:
            return divided(rows, contents, self.eval_share)
        (evaluated,) = others
        kept = set(map(self._content, evaluated.values()))
        return {TRAIN: {k: r for k, r in rows.items() if contents[k] not in kept}, EVAL: evaluated}

    @property
    def _files(self) -> tuple[Path, ...]:
        return tuple(self.folder / path for path in (self.path, self.eval_path) if path)

    def _content(self, row: Row) -> bytes:
        """What an item says, its name apart."""
        told = {column: value for column, value in row.items() if column != self.name}
        return json.dumps(told, sort_keys=True).encode()


def _read(file: Path, name: str) -> dict[Name, Row]:
    """Returns the rows of a file by their names. ValueError, with the line, for one that is
    damaged, or named as an earlier one."""
    rows: dict[Name, Row] = {}
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        try:
            row = parse_json(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{file}, line {number}: {error}") from None
        if not isinstance(row, dict):
            raise ValueError(f"{file}, line {number}: {line!r:.80} is no object")
        named = row.get(name, f"{file.stem}:{number}")
        if not isinstance(named, Name):
            raise ValueError(
                f"{file}, line {number}: {name} {named!r:.80} must be text or a number"
            )
        if named in rows:
            raise ValueError(f"{file}, line {number}: there are two items {named!r:.80}")
        rows[named] = row
    if not rows:
        raise ValueError(f"{file} has no items")
    return rows
