"""What is written down about an image, and what that looks like as JSON."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any


class _Checked:
    """A record that refuses fields of the wrong type: it may have been read from a file."""

    def __post_init__(self):
        for field, kind in typing.get_type_hints(type(self)).items():
            if not isinstance(value := getattr(self, field), kind):
                raise ValueError(f"{field} must be {kind}, is {value!r:.80}")


@dataclasses.dataclass(frozen=True)
class Capabilities(_Checked):
    """What an image holds that a sandbox, or an agent in it, may need.

    agent: whether /etc/passwd knows a user of that name. libc: "glibc", "musl" or "none", by the
    loader of programs that is there.
    """

    bash: bool
    python3: bool
    tar: bool
    agent: bool
    libc: str


@dataclasses.dataclass(frozen=True)
class Verification(_Checked):
    """The last time that somebody tried the image out. time: seconds since the epoch."""

    time: float
    runtime: str
    ok: bool
    detail: str


@dataclasses.dataclass(frozen=True)
class Manifest(_Checked):
    """An image that the daemon of this node has.

    name: as `SandboxSpec.image` has it. reference: the same, but with the recipe's address, which
    `recipe` is; for an image of somebody else the name, and no recipe.
    bytes: of all its layers. built: seconds since the epoch, by the daemon.
    build_seconds: None where it is not known.
    """

    name: str
    reference: str
    recipe: str | None
    image_id: str
    bytes: int
    built: float
    build_seconds: float | None
    capabilities: Capabilities
    verified: Verification | None


def to_json(manifest: Manifest) -> dict[str, Any]:
    return dataclasses.asdict(manifest)


def from_json(content: Any) -> Manifest:
    """The inverse of `to_json`. ValueError if `content` is no manifest."""
    try:
        fields = dict(content)
        fields["capabilities"] = Capabilities(**fields["capabilities"])
        if fields["verified"] is not None:
            fields["verified"] = Verification(**fields["verified"])
        return Manifest(**fields)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a manifest ({error!r:.200})") from error
