"""Which replies never reached the agent and were asked for again: it has acted on the later one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class Asked(Protocol):
    """A call, as in `custody.calls`."""

    @property
    def start(self) -> bytes: ...

    @property
    def begun(self) -> int: ...

    @property
    def lost_at(self) -> int: ...

    @property
    def is_retry(self) -> bool: ...

    @property
    def was_sent(self) -> bool: ...


Call = TypeVar("Call", bound=Asked)


def abandoned(lost: Iterable[Call], answered: Iterable[Call]) -> list[Call]:
    """Returns those of the lost calls that a later call, which was answered, takes the place of.

    A call retries another one with the same prompt that was begun before it, if it says that it is
    a retry, or if the other one was known to be lost by then and nothing of its reply was sent that
    the agent could act on: of an agent with tools, that is the end, with the calls. Each retry
    replaces one call: of n calls for the best of their replies, the others may have been read.
    """
    waiting = sorted(lost, key=lambda call: call.begun)
    starts = {call.start for call in waiting}
    retries = sorted((c for c in answered if c.start in starts), key=lambda call: call.begun)
    found = []
    for retry in retries:
        before = [call for call in waiting if _is_retried(call, retry)]
        if before:
            found.append(before[-1])
            waiting.remove(before[-1])
    return found


def _is_retried(call: Asked, retry: Asked) -> bool:
    if call.start != retry.start or not call.begun < retry.begun:
        return False
    return retry.is_retry or (call.lost_at < retry.begun and not call.was_sent)
