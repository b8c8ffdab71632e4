"""An interactive terminal in a sandbox of another node."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from ale_jax.sandbox.pool.warm import new_id
from ale_jax.system.sandbox_node import Node

TYPE_S = 60.0  # for the command to read what is typed


class FarTerminal:
    """A `Terminal` of the service, over calls of its node."""

    def __init__(self, node: Node, key: str, pieces: AsyncIterator[tuple[str, bytes | int]]):
        self._node, self._key, self._pieces = node, key, pieces
        self._exit_code: int | None = None

    async def receive(self) -> tuple[str, bytes] | None:
        kind, content = await anext(self._pieces)
        if kind == "exit":
            self._exit_code = content
            return None
        return kind, content

    async def write(self, data: bytes) -> None:
        await self._node.tell(TYPE_S, "type_into", self._key, data)

    async def resize(self, rows: int, columns: int) -> None:
        await self._node.tell(TYPE_S, "resize", self._key, rows, columns)

    async def wait(self) -> int:
        """All that it showed has been received."""
        assert self._exit_code is not None
        return self._exit_code


@contextlib.asynccontextmanager
async def open_terminal(
    node: Node, id: str, command: str, rows: int, columns: int
) -> AsyncIterator[FarTerminal]:
    """Its command ends with the block. Errors: the pool's, and NodeLost."""
    key = new_id()
    pieces = node.stream("terminal", key, id, command, rows, columns)
    async with contextlib.aclosing(pieces):
        await anext(pieces)  # it is open
        yield FarTerminal(node, key, pieces)
