"""The records of files: lines of jsonl, rows of parquet, and JSON of one record or a list of
them."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ale_jax.config.recorded import DataFiles
from ale_jax.files import read_json
from ale_jax.worlds.bridges.tables import parquet_rows
from ale_jax.worlds.rows import line_of

T = TypeVar("T")


def read_all(
    data: DataFiles, folder: str, read: Callable[[Mapping[str, Any]], T]
) -> Iterator[tuple[str, T]]:
    """Yields what `read` makes of the records of a data set, each with its place. ValueError, with
    file, line and field, for one that cannot be read."""
    for file in files_of(data, folder):
        for place, record in records(file):
            try:
                yield place, read(record)
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from None


def files_of(data: DataFiles, folder: str) -> list[Path]:
    """Returns the files of a data set in the order of their names. folder: in which they are looked
    for. ValueError if there are none."""
    found = sorted(glob.glob(data.files, root_dir=folder or None, recursive=True))
    paths = [path for path in (Path(folder, name) for name in found) if path.is_file()]
    if not paths:
        raise ValueError(
            f"{data.LIST} {data.name}: there is no file {str(Path(folder, data.files))!r}"
        )
    return paths


def records(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the place of each record, and the record. ValueError, with that, for a damaged one."""
    for place, record in _records(file):
        if not isinstance(record, dict):
            raise ValueError(f"{place}: {record!r:.80} is no object")
        yield place, record


def _records(file: Path) -> Iterator[tuple[str, Any]]:
    if file.suffix == ".parquet":
        yield from parquet_rows(file)
    elif file.suffix == ".json":
        content = read_json(file)
        several = content if isinstance(content, list) else [content]
        for number, record in enumerate(several, 1):
            yield f"{file}, record {number}", record
    else:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield line_of(file, number, line)
