"""On which nodes of a cluster each snapshot lies."""

from __future__ import annotations

from collections.abc import Callable

from ale_jax.system.sandbox_cluster import ASK_S
from ale_jax.system.sandbox_node import Node, NodeLost

MAX_SNAPSHOTS = 100_000  # that are known of; nodes make room for new ones long before


class Copies:
    """lose: told of a node that turns out to be lost."""

    def __init__(self, lose: Callable[[Node, str], None]):
        self._holders: dict[str, set[Node]] = {}  # of the newest, last
        self._lose = lose

    def note(self, snapshot: str, node: Node) -> None:
        """It was taken on `node`."""
        holders = self._holders[snapshot] = self._holders.pop(snapshot, set())
        holders.add(node)
        if len(self._holders) > MAX_SNAPSHOTS:
            del self._holders[next(iter(self._holders))]

    def forget(self, node: Node) -> None:
        for holders in self._holders.values():
            holders.discard(node)

    async def bring(self, snapshot: str, node: Node) -> None:
        """Copies a snapshot to `node`, unless it is there, or nobody here knows of it.

        Errors: NodeLost, if `node` is lost.
        """
        holders = self._holders.get(snapshot, set())
        if node in holders:
            return
        for holder in list(holders):
            try:
                content = await holder.ask(ASK_S, "get_snapshot", snapshot)
            except NodeLost as error:
                self._lose(holder, str(error))
                continue
            except ValueError:  # it made room there
                holders.discard(holder)
                continue
            await node.ask(ASK_S, "put_snapshot", content)
            holders.add(node)
            return
