"""Which tokens of packed rows a loss reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SIZES = 8  # of R at most, as each is a program to compile


def read_tokens(read: Sequence[NDArray[np.bool_]]) -> list[NDArray[np.int32] | None]:
    """Returns those tokens of each row that are read, ascending, int32 [B, R] for each batch; None
    for all if R would be T. read: bool [B, T] of each batch.

    R is a multiple of an eighth of T, the same for all batches: those of one step share a program.
    Rows are filled up with other tokens of theirs, and not with one of them again and again, which
    would all go to the same experts. No row's first token is among them, since no token precedes it
    that could predict it.

        >>> read_BT = np.zeros((2, 16), bool)
        >>> read_BT[0, [5, 6, 9]] = read_BT[1, 2] = True
        >>> read_tokens([read_BT])[0].tolist()
        [[1, 5, 6, 9], [1, 2, 3, 4]]
    """
    if not read:
        return []
    T = read[0].shape[1]
    most = max(int(read_BT[:, 1:].sum(axis=1).max()) for read_BT in read)
    R = -(-max(-(-most * SIZES // T), 1) * T // SIZES)
    return [_filled_up(read_BT, R) if R < T else None for read_BT in read]


def _filled_up(read_BT: NDArray[np.bool_], R: int) -> NDArray[np.int32]:
    # A stable sort, which puts tokens that are read before the others.
    order_BT = np.argsort(~read_BT[:, 1:], axis=1, kind="stable")
    return np.sort(order_BT[:, :R] + 1, axis=1).astype(np.int32)
