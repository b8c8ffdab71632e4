"""What images are called: "ale-shell" for a recipe's newest, "ale/shell:HASH" for a certain one."""

from __future__ import annotations

import dataclasses
import re

ADDRESS_DIGITS = 12
MAX_CHARACTERS = 128

_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_MOVING = re.compile(rf"ale-({_PART})(?::latest)?")
_PINNED = re.compile(rf"ale/({_PART}):([0-9a-f]{{{ADDRESS_DIGITS}}})")
_HOST = r"[a-zA-Z\d][a-zA-Z\d-]*(?:\.[a-zA-Z\d-]+)*(?::\d+)?/"
_ANY = re.compile(
    rf"(?:{_HOST})?{_PART}(?:/{_PART})*(?::\w[\w.-]*)?(?:@sha256:[0-9a-f]{{64}})?", re.ASCII
)


@dataclasses.dataclass(frozen=True)
class ImageName:
    """An image as `SandboxSpec.image` names it.

    recipe: "shell" for "ale-shell" and for "ale/shell:HASH", None for an image of somebody else.
    address: of the recipe's content, where the name says which; None for whatever is the newest.
    """

    text: str
    recipe: str | None = None
    address: str | None = None

    @property
    def moving(self) -> str:
        """The name that stands for the newest image of the recipe; of others' images, the name."""
        return f"ale-{self.recipe}" if self.recipe else self.text


def parse(text: str) -> ImageName:
    """ValueError if `text` is not the name of an image."""
    if ours := parse_ours(text):
        return ours
    if len(text) > MAX_CHARACTERS or not _ANY.fullmatch(text):
        raise ValueError(
            f"{text!r:.200} is not the name of an image; "
            f"use one like 'ale-shell' or 'debian:12', of at most {MAX_CHARACTERS} characters"
        )
    return ImageName(text)


def parse_ours(text: str) -> ImageName | None:
    """The name of an image that is made from a recipe; None if `text` is none."""
    if len(text) > MAX_CHARACTERS:
        return None
    if found := _MOVING.fullmatch(text):
        return ImageName(f"ale-{found[1]}", found[1])
    if found := _PINNED.fullmatch(text):
        return ImageName(text, found[1], found[2])
    return None


def reference(recipe: str, address: str) -> str:
    """What the image of one content of a recipe is called, for good."""
    assert len(address) == ADDRESS_DIGITS, address
    return f"ale/{recipe}:{address}"
