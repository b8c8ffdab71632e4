"""Reads and writes the files of a run: whole files atomically, logs line by line.

A line of a log is complete if it ends with a newline. A process that is killed while it writes
leaves at most one incomplete line, at the end. Readers skip it and report it, and writers remove it
before they append. Any other damage is an error that names file and line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

T = TypeVar("T")

MAX_LINE_BYTES = 4 << 20
MAX_FILE_BYTES = 512 << 20


@dataclasses.dataclass(frozen=True)
class Lines(Generic[T]):
    """The records of a log, and where it breaks off.

    truncated_line: number of the incomplete last line, or None.
    """

    records: tuple[T, ...]
    truncated_line: int | None


class LineAppender:
    """A log that is appended to, one JSON object per line; safe to share between threads, flushed
    per line."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        cut_incomplete_line(path)
        self._file = path.open("ab")
        self._lock = threading.Lock()

    def append(self, record: Mapping[str, Any]) -> None:
        """Appends one line. Raises ValueError for NaN and infinity."""
        self._write(encode_line(record))

    def append_if_readable(self, record: Mapping[str, Any]) -> None:
        """Appends unless the line or the file would exceed what readers accept. For samples, of
        which one may be lost."""
        line = encode_line(record)
        if len(line) <= MAX_LINE_BYTES and self._file.tell() + len(line) <= MAX_FILE_BYTES:
            self._write(line)

    def _write(self, line: bytes) -> None:
        with self._lock:
            self._file.write(line)
            self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def encode_line(record: Mapping[str, Any]) -> bytes:
    r"""Returns one log line. Raises ValueError for NaN and infinity, which JSON does not have.

    >>> encode_line({"step": 3, "reward": 0.5})
    b'{"step": 3, "reward": 0.5}\n'
    """
    return json.dumps(record, allow_nan=False).encode() + b"\n"


def decode_object(line: bytes) -> dict[str, Any]:
    """Returns the object on a line of a log. Errors: those of `parse_json`; TypeError if it is
    another value."""
    record = parse_json(line)
    if not isinstance(record, dict):
        raise TypeError(f"expected an object, found {type(record).__name__}")
    return record


def read_lines(
    path: Path,
    parse: Callable[[dict[str, Any]], T],
    max_bytes: int = MAX_FILE_BYTES,
    decode: Callable[[bytes], dict[str, Any]] = decode_object,
) -> Lines[T]:
    """Reads the records of the log at `path`, each made by `parse`.

    `parse` raises KeyError, TypeError or ValueError for an object that is not a valid record.
    max_bytes: of the file; larger ones are for records that keep little of their lines.
    decode: of a line; raises what `decode_object` does.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: a line other than an incomplete last one is damaged, or a cap is exceeded.
    """
    _refuse_large(path, max_bytes)
    records: list[T] = []
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), 1):
            if len(line) > MAX_LINE_BYTES:
                raise ValueError(f"{path}, line {number}: longer than {MAX_LINE_BYTES} bytes")
            if not line.endswith(b"\n"):
                return Lines(tuple(records), number)
            try:
                records.append(parse(decode(line)))
            except (KeyError, TypeError, ValueError, RecursionError) as error:
                raise ValueError(
                    f"{path}, line {number}: damaged ({error!r:.200}): remove the line to continue"
                ) from error
    return Lines(tuple(records), None)


def read_json(path: Path) -> Any:
    """Returns the content of the JSON file at `path`. Raises ValueError with its name if it is
    damaged."""
    _refuse_large(path)
    try:
        return parse_json(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: damaged ({error!s:.200})") from error


def write_json(path: Path, content: Any, indent: int | None = 2) -> None:
    """Writes `content` as JSON, atomically. indent None: in one line, for large content that people
    do not read."""
    text = json.dumps(content, indent=indent, allow_nan=False) + "\n"
    write_atomically(path, [text.encode()])


def write_atomically(path: Path, parts: Iterable[bytes]) -> None:
    """Replaces the file completely or not at all, even if the process is killed meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes the file private, but the files of a run should be readable by others.
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yields a folder to write to within the block, which becomes `path` at its end; removed
    instead if an exception ends it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield unfinished
        os.chmod(unfinished, 0o755)  # mkdtemp makes it private
        os.rename(unfinished, path)
    except BaseException:
        shutil.rmtree(unfinished)
        raise


def cut_incomplete_line(path: Path) -> None:
    """Removes what a process that was killed has written of the last line of a log, if there is
    one. ValueError if the file is no log."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        start = max(0, size - MAX_LINE_BYTES)
        file.seek(start)
        tail = file.read()
        if tail and not tail.endswith(b"\n"):
            end = tail.rfind(b"\n")
            if end < 0 and start > 0:
                raise ValueError(f"{path}: its last {MAX_LINE_BYTES} bytes hold no line; not a log")
            file.truncate(start + end + 1)


def _refuse_large(path: Path, max_bytes: int = MAX_FILE_BYTES) -> None:
    size = path.stat().st_size
    if size > max_bytes:
        raise ValueError(f"{path}: {size} bytes; at most {max_bytes} are read")


def parse_json(content: bytes) -> Any:
    """Parses JSON.

    Raises:
      ValueError: it is not valid (NaN and infinity are not), or a number is out of range.
      RecursionError: it is nested too deeply.
    """
    return json.loads(
        content, parse_constant=_refuse_constant, parse_float=_finite_float, parse_int=_int64
    )


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite_float(digits: str) -> float:
    # "1e999" is valid JSON and would become infinity.
    if not math.isfinite(value := float(digits)):
        raise ValueError(f"{digits:.40} is out of range")
    return value


def _int64(digits: str) -> int:
    if not -(2**63) <= (value := int(digits)) < 2**63:
        raise ValueError(f"{digits:.40} is out of range")
    return value
