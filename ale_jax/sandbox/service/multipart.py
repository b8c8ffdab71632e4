"""Reads a form with files (multipart/form-data, RFC 7578), whole and strictly."""

from __future__ import annotations

import dataclasses
import re

BOUNDARY = re.compile(r'multipart/form-data\s*;.*boundary=(?:"([^"]{1,70})"|([^;\s]{1,70}))', re.I)
PARAMETER = re.compile(r';\s*([a-z]+)="((?:[^"\\]|\\.)*)"', re.I)
MAX_PARTS = 1024


@dataclasses.dataclass(frozen=True)
class Part:
    """filename: empty if the sender gave none."""

    name: str
    filename: str
    data: bytes


def parse_form(content_type: str, body: bytes) -> list[Part]:
    """The parts, in the order sent. Errors: ValueError."""
    match = BOUNDARY.match(content_type)
    if not match:
        raise ValueError(f"content-type {content_type!r:.140} must be multipart/form-data")
    mark = b"--" + (match[1] or match[2]).encode("latin-1")
    first, *pieces = (b"\r\n" + body).split(b"\r\n" + mark)
    if first or not pieces or not pieces[-1].startswith(b"--"):
        raise ValueError("the form has no beginning or no end")
    if len(pieces) > MAX_PARTS:
        raise ValueError(f"the form has more than {MAX_PARTS} parts: send it in parts")
    return [_part(piece) for piece in pieces[:-1]]


def _part(piece: bytes) -> Part:
    head, gap, data = piece.partition(b"\r\n\r\n")
    rest_of_mark, *lines = head.decode("utf-8", "replace").split("\r\n")
    if rest_of_mark.strip(" \t"):  # data that begins like the boundary, which none may hold
        raise ValueError("the form's boundary is in its data")
    for line in lines:
        header, _, value = line.partition(":")
        if header.strip().lower() == "content-disposition":
            found = {n.lower(): re.sub(r"\\(.)", r"\1", v) for n, v in PARAMETER.findall(value)}
            if gap and "name" in found:
                return Part(found["name"], found.get("filename", ""), data)
    raise ValueError("a part of the form has no name")
