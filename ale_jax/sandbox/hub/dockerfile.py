"""What a Dockerfile would fetch: the images that it starts from, and files of the network.

The daemon pulls a base that is missing, whatever it is told, so the bases are looked at first. The
language is that of Docker's classic builder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_ESCAPE = re.compile(r"#\s*escape\s*=\s*(\S+)", re.IGNORECASE)
_STAGE = re.compile(r"(?:--platform=\S+\s+)?(\S+)(?:\s+AS\s+(\S+))?", re.IGNORECASE)
_FROM_OPTION = re.compile(r"--from=(\S+)")
_NETWORK_SOURCE = re.compile(r"://|\bgit@|\$")


def base_images(text: str) -> tuple[str, ...]:
    """The images that a Dockerfile needs, each once; not its own stages. ValueError if unclear."""
    stages, bases = {"scratch"}, {}
    for keyword, rest in _instructions(text):
        if keyword == "FROM":
            if not (found := _STAGE.fullmatch(rest)):
                raise ValueError(f"cannot read the line 'FROM {rest}'")
            wanted, stage = found[1], found[2]
        elif keyword == "COPY" and (found := _FROM_OPTION.search(rest)):
            wanted, stage = found[1], None
        else:
            continue
        if "$" in wanted:
            raise ValueError(f"{keyword} names {wanted!r}; write the image's name, not a variable")
        if wanted.lower() not in stages and not (keyword == "COPY" and wanted.isdecimal()):
            bases[wanted] = None
        if stage:
            stages.add(stage.lower())
    return tuple(bases)


def network_sources(text: str) -> tuple[str, ...]:
    """The ADD instructions whose source is, or may be, elsewhere: the daemon fetches it itself."""
    return tuple(
        f"{keyword} {rest}"
        for keyword, rest in _instructions(text)
        if keyword == "ADD" and _NETWORK_SOURCE.search(rest)
    )


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    """(keyword in capitals, the rest in one line), comments and empty lines left out."""
    if (found := _ESCAPE.match(text.lstrip())) and found[1] != "\\":
        raise ValueError(f"the directive escape={found[1]} is not supported; use the backslash")
    logical = ""
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        logical += line.removesuffix("\\")
        if not line.endswith("\\") and logical.strip():
            yield _split(logical)
            logical = ""
    if logical.strip():
        yield _split(logical)


def _split(logical: str) -> tuple[str, str]:
    keyword, *rest = logical.split(maxsplit=1)
    arguments = rest[0].strip() if rest else ""
    if keyword.upper() == "ONBUILD" and arguments:
        return _split(arguments)
    return keyword.upper(), arguments
