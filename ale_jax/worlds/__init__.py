"""What a world of one's own is written with. docs/worlds.md shows how."""

from ale_jax.worlds.api import Message, NoVerdictError, Step, VerifierError, World
from ale_jax.worlds.items import Item, Seeds
from ale_jax.worlds.rows import Rows

__all__ = [
    "Item",
    "Message",
    "NoVerdictError",
    "Rows",
    "Seeds",
    "Step",
    "VerifierError",
    "World",
]
