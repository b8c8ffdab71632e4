"""One order of programs on the devices of a mesh.

The learner and the engine dispatch programs from two threads. A program on several devices waits
for all of them. If one device is given the programs of both threads in one order, and another
device in the other order, each waits for the other forever.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from jax.sharding import Mesh

_DISPATCHING = threading.RLock()


@contextlib.contextmanager
def dispatching(mesh: Mesh | None) -> Iterator[None]:
    """Within the block, no other thread dispatches programs. Whoever need not read the result there
    should leave it when the program is dispatched. A mesh of one device needs no order."""
    if mesh is None or mesh.devices.size == 1:
        yield
        return
    with _DISPATCHING:
        yield
