"""References to copies of roots, which stand for a snapshot's content wherever that is bytes."""

from __future__ import annotations

import builtins
import dataclasses
import json

from ale_jax.sandbox.api import SandboxError

PREFIX = b"ale-root "


@dataclasses.dataclass(frozen=True)
class Reference:
    """store: of which process. name: cannot be guessed, so whoever knows it may use it. bytes: what
    the copy holds, shared with others or not."""

    store: str
    name: str
    bytes: int

    def __bytes__(self) -> builtins.bytes:
        return PREFIX + json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def parse(cls, snapshot: builtins.bytes) -> Reference:
        """The inverse of bytes(). Errors: SandboxError."""
        if not is_reference(snapshot):
            raise SandboxError("this is a snapshot of a sandbox in memory, not of one on disk")
        return cls(**json.loads(snapshot.removeprefix(PREFIX)))


def is_reference(snapshot: bytes) -> bool:
    return snapshot.startswith(PREFIX)


def held_bytes(snapshot: bytes) -> int:
    """How much a snapshot holds on the host: itself, or what it refers to."""
    return Reference.parse(snapshot).bytes if is_reference(snapshot) else len(snapshot)
