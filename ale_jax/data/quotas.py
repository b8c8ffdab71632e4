"""Which domain each place of a run's steps belongs to, so that every step has its ratios."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Quotas:
    """The domains of the places 0, 1, ... in a run's steps; the step at version v has the places
    from v P to (v + 1) P - 1. Group number n belongs to the domain of place n.

    round: the domains of the first places, which are repeated.

    With the ratios 2 : 1, a step of three groups has two of domain 0:

        >>> quotas = Quotas.of_ratios((2, 1))
        >>> quotas.round
        (0, 1, 0)
        >>> [quotas.domain(place) for place in range(6)]
        [0, 1, 0, 0, 1, 0]
        >>> quotas.between(0, 3, 6), quotas.place(1, 1), quotas.first(1, 2)
        (2, 4, 4)
    """

    round: tuple[int, ...] = (0,)

    @classmethod
    def of_ratios(cls, ratios: Sequence[int], repeats: int = 1) -> Quotas:
        """Returns quotas by which every domain has its ratio in sum(ratios) * repeats places,
        evenly spread. repeats: how many places in a row are of one domain, as groups that share a
        task are."""
        places = [((k + 0.5) / ratio, i) for i, ratio in enumerate(ratios) for k in range(ratio)]
        return cls(tuple(domain for _, domain in sorted(places) for _ in range(repeats)))

    @functools.cached_property
    def domains(self) -> range:
        """The numbers of all domains."""
        return range(max(self.round) + 1)

    def domain(self, place: int) -> int:
        """Returns the domain of a place, and of the group of this number."""
        return self.round[place % len(self.round)]

    def before(self, domain: int, place: int) -> int:
        """Counts the places of a domain before `place`."""
        rounds, rest = divmod(place, len(self.round))
        return rounds * self.round.count(domain) + self.round[:rest].count(domain)

    def between(self, domain: int, first: int, end: int) -> int:
        """Counts the places of a domain from `first` on and before `end`."""
        return max(0, self.before(domain, end) - self.before(domain, first))

    def place(self, domain: int, number: int) -> int:
        """Returns the place of a domain before which it has `number` others."""
        own = [place for place, each in enumerate(self.round) if each == domain]
        rounds, rest = divmod(number, len(own))
        return rounds * len(self.round) + own[rest]

    def first(self, domain: int, place: int) -> int:
        """Returns the first place of a domain from `place` on."""
        return self.place(domain, self.before(domain, place))


ONE_DOMAIN = Quotas()
