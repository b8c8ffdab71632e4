"""Of several starts, the first that are ready."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol, TypeVar


class Start(Protocol):
    """arrival: done when it runs, or with the reason why it never will. starters: how many wait
    for it. was_delivered: one of them has it."""

    arrival: asyncio.Future[None]
    starters: int
    was_delivered: bool


S = TypeVar("S", bound=Start)


async def first_up(starts: Sequence[S], count: int) -> list[S]:
    """The first `count` that run, in that order; they have been delivered then.

    Waits for all of them; is unblocked by the last that is wanted, or by the failure that leaves
    too few, whose error it raises.
    """
    for start in starts:
        start.starters += 1
    try:
        won = await _first_up(starts, count)
    finally:
        for start in starts:
            start.starters -= 1
    for start in won:
        start.was_delivered = True
    return won


async def _first_up(starts: Sequence[S], count: int) -> list[S]:
    waiting = {start.arrival: start for start in starts}
    won: list[S] = []
    while len(won) < count:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for arrival in [each for each in waiting if each.done()]:
            start = waiting.pop(arrival)
            error = arrival.exception()
            if error is None:
                won.append(start)
            elif len(won) + len(waiting) < count:
                raise error
    return won[:count]
