"""Training items that were chosen by how often a policy has solved them: items that it always, or
never, solves teach little."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import zlib
from pathlib import Path

from ale_jax.config.worlds import Domain
from ale_jax.files import read_json
from ale_jax.worlds.finite import permutation
from ale_jax.worlds.items import TRAIN, Item, Items, Name

RATES_FILE = "pass_rates.json"  # which `ale-jax eval` writes beside the episodes


@dataclasses.dataclass(frozen=True)
class Selected:
    """Those training items of `items` whose pass rate in the evaluation in `folder` lies in the
    domain's range. What is evaluated stays as it is. family: its name in the run. The file is read
    when it is needed first, which is never by a rollout worker."""

    items: Items
    domain: Domain
    folder: Path
    family: str

    def at(self, folder: Path) -> Selected:
        """Returns these items with relative paths taken from `folder`."""
        return dataclasses.replace(self, items=self.items.at(folder))

    def count(self, split: str) -> int | None:
        """Returns the number of items of a split."""
        return len(self.names) if split == TRAIN else self.items.count(split)

    def train(self, seed: int, draw: int, nth: int) -> Name:
        """Returns the item that comes up as the `nth` one: each epoch is a permutation of all."""
        epoch, place = divmod(nth, len(self.names))
        tag = zlib.crc32(self.family.encode())
        return self.names[permutation(seed, tag, epoch, len(self.names))[place]]

    def evaluation(self, draw: int, nth: int) -> Name:
        """Returns an evaluation item, whatever its pass rate."""
        return self.items.evaluation(draw, nth)

    def demonstrated(self, seed: int, count: int) -> list[Name]:
        """Returns the first items of the first epoch; at most all."""
        return [self.train(seed, nth, nth) for nth in range(min(count, len(self.names)))]

    def probe(self, seed: int, draw: int, nth: int) -> tuple[Name, str]:
        """Returns items from the end of the first epoch."""
        last = len(self.names) - 1
        return self.train(seed, last - nth, last - nth), TRAIN

    def find(self, family: str, name: Name, split: str) -> Item:
        """Returns the item of a name, also of one that was not chosen."""
        return self.items.find(family, name, split)

    def digest(self) -> str:
        """Returns the digest of all items: the choice changes no task."""
        return self.items.digest()

    @property
    def choice(self) -> str:
        """A digest of what was chosen."""
        return hashlib.sha256(repr(self.names).encode()).hexdigest()

    @property
    def account(self) -> str:
        """How many were chosen, for people."""
        low, high = self.domain.pass_at_least, self.domain.pass_at_most
        return (
            f"{self.family}: {len(self.names)} of {len(self._rates)} items, those with a pass rate "
            f"from {low:g} to {high:g}"
        )

    @functools.cached_property
    def names(self) -> tuple[Name, ...]:
        """The names of the chosen items. ValueError if there are none."""
        domain = self.domain
        low, high = domain.pass_at_least, domain.pass_at_most
        found = tuple(name for name, rate in self._rates.items() if low <= rate <= high)
        if not found:
            rates = sorted(self._rates.values())
            raise ValueError(
                f"{self.folder / RATES_FILE}: none of {len(rates)} items of {self.family} has a "
                f"pass rate from {low:g} to {high:g}: they are from {rates[0]:g} to {rates[-1]:g}"
            )
        return found

    @functools.cached_property
    def _rates(self) -> dict[Name, float]:
        file = self.folder / RATES_FILE
        if not file.is_file():
            raise ValueError(
                f"there is no {file}: `ale-jax eval --split=train --samples=8` writes it into the "
                "folder that pass_rates names"
            )
        rates = rates_in(file, self.domain.world, self.family)
        own_name = self.family.removeprefix(self.domain.prefix)
        try:
            for name in rates:
                self.items.find(own_name, name, TRAIN)
        except ValueError as error:
            raise ValueError(f"{file}: {error}: evaluate with --split=train") from None
        return rates


def rates_in(file: Path, world: str, family: str) -> dict[Name, float]:
    """Returns the pass rates of a family's items that were judged. ValueError if the file has none,
    or is damaged."""
    content = read_json(file)
    rates: dict[Name, float] = {}
    try:
        for name, solved, judged in content[world][family]:
            if not isinstance(name, Name) or not 0 <= solved <= judged or not judged:
                raise ValueError(f"{[name, solved, judged]!r:.80}")
            rates[name] = solved / judged
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{file} has no pass rates of family {family} of world {world}: {error!r:.120}"
        ) from None
    if not rates:
        raise ValueError(f"{file}: no item of family {family} was judged")
    return rates
