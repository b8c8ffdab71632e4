"""Rows of data sets as they are published, which a template has to fit: jsonl, which may be packed,
parquet, and folders of both."""

from __future__ import annotations

import dataclasses
import gzip
import re
import string
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ale_jax.worlds.finite import Row
from ale_jax.worlds.rows import Rows, line_of

SPLIT = re.compile(r"(.+?)(?:-\d+-of-\d+)?\.(?:parquet|jsonl|jsonl\.gz)")
TRAINED, EVALUATED = "train", ("test", "validation")
LABELS = string.ascii_uppercase


@dataclasses.dataclass(frozen=True)
class Table(Rows):
    """The rows of `path`, each of which is examined before any is played.

    `path` may be a folder as Hugging Face lays it out: its files are named after splits, such as
    train-00000-of-00002.parquet. Rows of `train` are trained on, and those of `test`, or else of
    `validation`, are evaluated. A split that is alone is divided by `eval_share`.

    split, eval_split: the names of the two splits instead. examine: raises ValueError for a row
    that cannot be played.
    """

    split: str = ""
    eval_split: str = ""
    examine: Callable[[Row], object] = dict

    def parts(self) -> Sequence[Sequence[Path]]:
        """Returns as `Rows.parts`, of a folder the files of its splits. ValueError for splits that
        the folder does not have."""
        folder = self.folder / self.path
        if not folder.is_dir():
            return super().parts()
        splits = splits_of(folder)
        known = f"{folder} has the splits {', '.join(splits) or 'of no jsonl or parquet file'}"
        for name in filter(None, (self.split, self.eval_split)):
            if name not in splits:
                raise ValueError(f"{known}, and not {name!r:.80}")
        only = next(iter(splits), "") if len(splits) == 1 else ""
        train = self.split or only or (TRAINED if TRAINED in splits else "")
        others = (name for name in EVALUATED if name in splits and name != train)
        evaluated = self.eval_split or next(others, "")
        if not train:
            raise ValueError(f"{known}: name one with `split`, and what is evaluated `eval_split`")
        return [splits[name] for name in (train, evaluated) if name]

    def records(self, file: Path) -> Iterator[tuple[str, Any]]:
        """Yields as `Rows.records`. ValueError, with the place, for a row that is damaged or cannot
        be played."""
        for place, row in self._unpacked(file):
            if isinstance(row, dict):
                try:
                    self.examine(row)
                except ValueError as error:
                    raise ValueError(f"{place}: {error}") from None
            yield place, row

    def _unpacked(self, file: Path) -> Iterator[tuple[str, Any]]:
        if file.suffix == ".parquet":
            yield from parquet_rows(file)
            return
        try:
            content = file.read_bytes()
            content = gzip.decompress(content) if file.suffix == ".gz" else content
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{file} cannot be read: {error}") from None
        for number, line in enumerate(content.splitlines(), 1):
            yield line_of(file, number, line)


def splits_of(folder: Path) -> dict[str, list[Path]]:
    """Returns the files of a folder by the splits that their names tell."""
    splits: dict[str, list[Path]] = {}
    for file in sorted(folder.rglob("*")):
        if found := SPLIT.fullmatch(file.name):
            splits.setdefault(found.group(1), []).append(file)
    return splits


def parquet_rows(file: Path) -> Iterator[tuple[str, Any]]:
    """Yields the place of each row of a file, and the row. ValueError, with that, for a damaged
    one."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError(f"{file}: reading parquet needs pyarrow: pip install pyarrow") from None
    number = 0
    try:
        with parquet.ParquetFile(file) as opened:
            for batch in opened.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield f"{file}, row {number}", row
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"{file}, after row {number}: {error}") from None


def column(row: Row, name: str) -> Any:
    """Returns what a row has in a column. ValueError if there is none, or nothing is in it."""
    if name not in row:
        raise ValueError(f"there is no column {name!r:.80}: there are {', '.join(row)}")
    if row[name] is None or row[name] == "":
        raise ValueError(f"the column {name!r:.80} is empty")
    return row[name]


def text(row: Row, name: str) -> str:
    """Returns a column that is text or a number, as text. ValueError if it is not."""
    value = column(row, name)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"the column {name!r:.80} holds {value!r:.80}, which is no text")
    return str(value)


def texts(row: Row, name: str) -> tuple[str, ...]:
    """Returns a column that is a text or a list of them. ValueError if it is not."""
    value = column(row, name)
    if not isinstance(value, list):
        return (text(row, name),)
    if not value or not all(isinstance(each, str) and each for each in value):
        raise ValueError(f"the column {name!r:.80} holds {value!r:.80}, which are no texts")
    return tuple(value)


def columns_of(template: str) -> tuple[str, ...]:
    """Returns the columns that a template names in braces. ValueError for other uses of braces."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ValueError(
            f"prompt {template!r:.80}: {error}; write a brace as {{{{ or }}}}"
        ) from None
    names = []
    for _, name, spec, conversion in parts:
        if name is None:
            continue
        if not name or spec or conversion or set(name) & set(".[]"):
            raise ValueError(
                f"prompt {template!r:.80}: {{{name}}} must be the name of a column; write a brace "
                "as {{ or }}"
            )
        names.append(name)
    return tuple(names)


def filled(template: str, row: Row) -> str:
    """Returns a template with the columns of a row. A list is shown as choices. ValueError for
    a column that is missing or empty."""
    return template.format_map({name: shown(row, name) for name in columns_of(template)})


def shown(row: Row, name: str) -> str:
    """Returns a column as the policy reads it."""
    if isinstance(column(row, name), str | int | float):
        return text(row, name)
    return "\n".join(f"{label}. {told}" for label, told in choices(row, name).items())


def choices(row: Row, name: str) -> Mapping[str, str]:
    """Returns the choices of a column by their labels: a list, whose labels are letters, or an
    object with the lists `text` and `label`. ValueError for anything else."""
    value = column(row, name)
    told = value.get("text") if isinstance(value, dict) else value
    labels = value.get("label") if isinstance(value, dict) else LABELS
    wrong = ValueError(f"the column {name!r:.80} holds {value!r:.80}, which are no choices")
    if not isinstance(told, list) or not isinstance(labels, list | str) or not told:
        raise wrong
    if not all(isinstance(each, str) and each for each in (*told, *labels)):
        raise wrong
    if len(told) != len(set(labels[: len(told)])) or len(labels) < len(told):
        raise wrong
    return dict(zip(labels, told))
