"""Frames between a front end and the process that owns the pool: JSON, followed by the bytes that
JSON cannot hold. Nothing is unpickled.

A frame: u32 length of the head (big-endian), the head, the blobs. The head is JSON: {"value": ...,
"blobs": [[path, size], ...]}; `path` is where a blob belongs in the value, which has null there.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import struct
from collections.abc import Mapping
from typing import Any

from ale_jax.sandbox.api import (
    ImageMissing,
    SandboxError,
    SandboxLost,
    SandboxStartError,
)
from ale_jax.sandbox.pool.api import Cause, NodeFull, PoolFull, QuotaExceeded, SandboxGone
from ale_jax.sandbox.service.protocol import Refusal

SIZE = struct.Struct(">I")
# The statuses of the 10,000 sandboxes that a pool remembers are 30 MB if they have little text. Of
# those with as much in spec (64 KiB) and labels (16 KiB) as they may have, 3,000 fit.
MAX_HEAD = 256 << 20
MAX_BLOBS = 4 << 30  # a snapshot; the front ends limit what clients may send


def pack(value: Any) -> bytes:
    """The frame of a value of records, mappings with string keys, lists, bytes and plain data.

    Errors: Refusal for more than MAX_HEAD bytes of JSON, which the far end would not read.
    """
    blobs: list[tuple[list[str | int], bytes]] = []
    head = {"value": _split(value, [], blobs), "blobs": [[p, len(b)] for p, b in blobs]}
    text = json.dumps(head).encode()
    if len(text) > MAX_HEAD:
        message = f"{len(text)} bytes of JSON are more than the {MAX_HEAD} that can be passed on"
        raise Refusal(500, "too_large", message, "ask for less, such as one sandbox's status")
    return b"".join((SIZE.pack(len(text)), text, *(blob for _, blob in blobs)))


def _split(value: Any, path: list[str | int], blobs: list[tuple[list[str | int], bytes]]) -> Any:
    if isinstance(value, bytes | bytearray):
        blobs.append((path, bytes(value)))
        return None
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _split(each, [*path, str(name)], blobs) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_split(each, [*path, number], blobs) for number, each in enumerate(value)]
    return value


async def read(reader: asyncio.StreamReader) -> Any:
    """The value of the next frame. Errors: EOFError at the end; ValueError for a bad frame."""
    try:
        (size,) = SIZE.unpack(await reader.readexactly(SIZE.size))
        if size > MAX_HEAD:
            raise ValueError(f"a head of {size} bytes")
        head = json.loads(await reader.readexactly(size))
        try:
            box, blobs = {"value": head["value"]}, head["blobs"]
            if sum(length for _, length in blobs) > MAX_BLOBS:
                raise ValueError(f"more than {MAX_BLOBS} bytes")
            for path, length in blobs:
                _put(box, ["value", *path], await reader.readexactly(length))
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"not a frame: {error!r:.80}") from error
    except asyncio.IncompleteReadError as error:
        raise EOFError from error
    return box["value"]


def _put(value: Any, path: list[str | int], blob: bytes) -> None:
    *way, last = path
    for step in way:
        value = value[step]
    value[last] = blob


ERRORS: Mapping[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        # A class comes before its base classes.
        *(SandboxGone, SandboxLost, PoolFull, NodeFull, QuotaExceeded),
        *(ImageMissing, SandboxStartError, SandboxError),
        *(FileNotFoundError, NotADirectoryError, OSError, ValueError, Refusal),
    )
}


def error_to_json(error: Exception) -> dict[str, Any]:
    """What the other side is told; of an unexpected error, only that it happened."""
    name = next((name for name, kind in ERRORS.items() if isinstance(error, kind)), None)
    if name is None:
        return {"kind": "SandboxError", "text": "the sandboxes' process failed; its log says why"}
    more: dict[str, Any] = {}
    if isinstance(error, SandboxGone):
        more = {"id": error.id, "cause": error.cause}
    elif isinstance(error, Refusal):
        names = ("status", "kind", "message", "remedy", "cause")
        more = {"refusal": [getattr(error, name) for name in names]}
    elif isinstance(error, OSError):
        more = {"errno": error.errno, "strerror": error.strerror}
    return {"kind": name, "text": str(error), **more}


def error_from_json(values: dict[str, Any]) -> Exception:
    kind = ERRORS[values["kind"]]
    if kind is SandboxGone:
        return SandboxGone(values["id"], values["cause"] and Cause(values["cause"]))
    if kind is Refusal:
        return Refusal(*values["refusal"])
    if values.get("errno") is not None:
        return kind(values["errno"], values["strerror"])
    return kind(values["text"])
