"""What a world of one's own is written with. docs/worlds.md shows how."""

from ale_jax.worlds.api import (
    Limits,
    Message,
    NoVerdictError,
    Step,
    VerdictRefusedError,
    VerifierError,
    World,
)
from ale_jax.worlds.items import Item, Seeds
from ale_jax.worlds.replies import Call, Reply, write_reply
from ale_jax.worlds.rows import Rows

__all__ = [
    "Call",
    "Item",
    "Limits",
    "Message",
    "NoVerdictError",
    "Reply",
    "Rows",
    "Seeds",
    "Step",
    "VerdictRefusedError",
    "VerifierError",
    "World",
    "write_reply",
]
