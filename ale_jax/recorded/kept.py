"""Which records of a data set are learned, which are held out, and which are dropped."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from ale_jax.recorded.samples import Dropped

S = TypeVar("S")


class Begun(Protocol):
    """What a record holds."""

    @property
    def beginning(self) -> bytes:
        """A digest of how it begins."""


R = TypeVar("R", bound=Begun)


@dataclasses.dataclass(frozen=True)
class Kept(Generic[S]):
    """learned, held_out: what was made of records. used: the records that are learned and held out;
    with `dropped`, by their reasons, these are all."""

    learned: tuple[S, ...]
    held_out: tuple[S, ...]
    used: tuple[int, int]
    dropped: Counter[str]

    @property
    def account(self) -> str:
        """What became of the records, for people."""
        dropped, (learned, held_out) = sum(self.dropped.values()), self.used
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.dropped.most_common(5))
        return (
            f"{learned + held_out + dropped} records: {learned} learned, {held_out} held out, "
            f"{dropped} dropped{f' ({reasons})' if dropped else ''}"
        )


def keep(
    records: Iterable[tuple[str, R]],
    make: Callable[[R], Sequence[S]],
    held_out_share: float,
    on_progress: Callable[[int], None],
) -> Kept[S]:
    """Returns what `make` makes of records, which have their places beside them. Records that begin
    alike are held out together.

    make: Dropped for a record that is not learned from. on_progress: is told how many were read.
    ValueError, with the place, for a record that `make` refuses.
    """
    kept: tuple[list[S], list[S]] = ([], [])
    used, dropped = [0, 0], Counter[str]()
    for number, (place, record) in enumerate(records, 1):
        try:
            made = make(record)
        except Dropped as reason:
            dropped[str(reason)] += 1
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None
        else:
            is_held_out = int.from_bytes(record.beginning[:8]) < held_out_share * 2**64
            kept[is_held_out].extend(made)
            used[is_held_out] += 1
        on_progress(number)
    learned, held_out = map(tuple, kept)
    return Kept(learned, held_out, (used[0], used[1]), dropped)
