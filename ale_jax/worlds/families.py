"""The families of a run: what its config names, found."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ale_jax.config.run import RunConfig
from ale_jax.config.worlds import Domain
from ale_jax.records import Task
from ale_jax.sandbox.api import JudgedSandbox
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.worlds.api import Limits, World
from ale_jax.worlds.checked import CheckedWorld, Terms, WorldError
from ale_jax.worlds.items import EVAL, TRAIN, Item, Items
from ale_jax.worlds.names import find_world, folder_of
from ale_jax.worlds.selected import Selected
from ale_jax.worlds.tools import Offer, checked_tools


@dataclasses.dataclass(frozen=True)
class Family:
    """name: in the run. own_name: in its world. world: answers questions about items, and plays
    none; `open` makes those that do. in_template: as of `open_families`."""

    name: str
    own_name: str
    domain: Domain
    world: World
    items: Items
    in_template: bool = False

    def open(self) -> World:
        """Returns a world for episodes, one at a time."""
        return made(type(self.world), self.domain)

    @property
    def limits(self) -> Limits:
        """What its domain says, or else its world."""
        domain, own = self.domain, self.world.limits
        return Limits(
            domain.turns or own.turns,
            domain.reply_tokens or own.reply_tokens,
            domain.context or own.context,
        )

    def first(self) -> Task:
        """Returns a task that stands for all."""
        if self.items.count(TRAIN) == 0:
            return Task(self.name, self.items.evaluation(0, 0), EVAL)
        return Task(self.name, self.items.train(0, 0, 0), TRAIN)

    def item(self, task: Task) -> Item:
        """Returns the item of a task. ValueError if the family has none of that name."""
        return self.items.find(self.own_name, task.item, task.split)

    def sandbox(self, task: Task, spec: SandboxSpec) -> SandboxSpec | None:
        """Returns the sandbox that a task needs, if it needs one. spec: the run's."""
        return self.world.sandbox(self.item(task), spec)

    def offer(self, task: Task) -> Offer:
        """Returns the tools of a task. WorldError if the world cannot say them, or not such."""
        try:
            tools = self.world.tools(self.item(task))
            if not tools and self.in_template:
                tools = self.world.loop_tools
            return Offer(checked_tools(tools), self.world.must_call)
        except Exception as error:  # of any kind: a world may be anybody's
            raise WorldError.of(error) from error

    def checked(self, task: Task, sandbox: JudgedSandbox | None) -> CheckedWorld:
        """Returns a new world for the task."""
        terms = Terms(self.name, self.domain.solved_at, dict(self.domain.weights))
        return CheckedWorld(self.open(), self.item(task), sandbox, terms)

    def oracle(self, task: Task, noisy: bool = False) -> tuple[str, ...]:
        """Returns the replies that solve a task, or, `noisy`, do so after errors. ValueError if the
        world does not know them."""
        replies = self.replies(task, noisy)
        if replies is None:
            raise ValueError(
                f"item {task.item!r} of {self.name} has no oracle, so it cannot be demonstrated: "
                "leave the family out of what is demonstrated"
            )
        return replies

    def replies(self, task: Task, noisy: bool = False) -> tuple[str, ...] | None:
        """Returns the same as `oracle`, but None if the world does not know it. ValueError for an
        answer that is no replies."""
        item = self.item(task)
        replies = self.world.noisy_oracle(item) if noisy else self.world.oracle(item)
        if replies is None:
            return None
        if isinstance(replies, str) or not all(isinstance(reply, str) for reply in replies):
            raise ValueError(
                f"item {task.item!r} of {self.name}: the oracle must return a sequence of replies, "
                f"each a text, and not {replies!r:.80}"
            )
        return tuple(replies)


class Families:
    """The families of some domains, by their names."""

    def __init__(self, domains: Sequence[Domain], folder: str = "", in_template: bool = False):
        """folder: as `WorldsConfig.folder`. in_template: as of `open_families`. ValueError for a
        world or family that does not exist, and for two families of one name."""
        self._by_name: dict[str, Family] = {}
        self._of_domain: dict[Domain, tuple[str, ...]] = {}
        for domain in domains:
            opened = _families(domain, folder)
            found = tuple(dataclasses.replace(each, in_template=in_template) for each in opened)
            for family in found:
                self._add(family)
            self._of_domain[domain] = tuple(family.name for family in found)

    def __getitem__(self, name: str) -> Family:
        return self._by_name[name]

    def __iter__(self) -> Iterator[Family]:
        return iter(self._by_name.values())

    def of(self, *domains: Domain) -> tuple[str, ...]:
        """Returns the names of the families of some of the domains, in order."""
        return tuple(name for domain in domains for name in self._of_domain[domain])

    def _add(self, family: Family) -> None:
        known = self._by_name.setdefault(family.name, family)
        if (known.domain.world, known.own_name) != (family.domain.world, family.own_name):
            raise ValueError(
                f"{known.domain.world} and {family.domain.world} both have a family "
                f"{family.name!r}: give one of them a prefix"
            )
        if known.domain.choice != family.domain.choice:
            raise ValueError(
                f"family {family.name!r} stands in two domains with other pass_rates or another "
                "range of them: give both the same"
            )


@functools.lru_cache(maxsize=64)
def open_families(
    domains: tuple[Domain, ...], folder: str = "", in_template: bool = False
) -> Families:
    """Returns the families of some domains; the same object for the same arguments. in_template:
    the tools of our own loop are told by the chat template, and called in its format."""
    return Families(domains, folder, in_template)


def families_of(config: RunConfig) -> Families:
    """Returns the families of all tasks of a run. ValueError as from `Families`."""
    return open_families(config.domains, config.worlds.folder, config.tools_in_template)


def made(world_class: type[World], domain: Domain) -> World:
    """Returns a world with the options of its domain. ValueError if it takes others."""
    options = dict(domain.options)
    try:
        inspect.signature(world_class).bind(**options)
    except TypeError as error:
        raise ValueError(
            f"world {domain.world} cannot be made with the options {options!r:.200} ({error}): "
            f"it takes {inspect.signature(world_class)}"
        ) from None
    try:
        return world_class(**options)
    except ValueError:
        raise
    except Exception as error:  # of any kind: it is the user's class that runs here
        raise ValueError(
            f"world {domain.world} cannot be made: {type(error).__name__}: {error}"
        ) from error


def _families(domain: Domain, folder: str) -> list[Family]:
    world_class = find_world(domain.world, folder)
    world, place = made(world_class, domain), folder_of(world_class, folder)
    if not isinstance(world.families, Mapping) or not world.families:
        raise ValueError(
            f"world {domain.world}: families must be a mapping from names to items, such as "
            f'{{"easy": Rows("easy.jsonl")}}, and not {world.families!r:.80}'
        )
    names = domain.families or tuple(world.families)
    found = [
        Family(domain.prefix + name, name, domain, world, _items(world, name, domain).at(place))
        for name in names
    ]
    if not domain.pass_rates:
        return found
    rates = Path(folder, domain.pass_rates)
    return [
        dataclasses.replace(each, items=Selected(each.items, domain, rates, each.name))
        for each in found
    ]


def _items(world: World, name: str, domain: Domain) -> Items:
    try:
        items = world.families[name]
    except KeyError:
        raise ValueError(
            f"family {name!r:.80} is unknown to world {domain.world}: choose one of "
            f"{', '.join(world.families)}"
        ) from None
    if isinstance(items, type) or not isinstance(items, Items):
        raise ValueError(
            f"world {domain.world}: family {name!r:.80} is {items!r:.80}, and no items, such as "
            "Rows or Seeds"
        )
    return items


class PlayableFamilies:
    """The families of a rollout worker. sandbox: what a sandbox is, unless a world says otherwise.
    All methods raise whatever a world raises."""

    def __init__(self, families: Families, sandbox: SandboxSpec):
        self._families, self._spec = families, sandbox

    def sandbox(self, task: Task) -> SandboxSpec | None:
        """Returns the sandbox that a task needs, if it needs one."""
        return self._families[task.family].sandbox(task, self._spec)

    def turns(self, task: Task) -> int:
        """Returns the most turns of a task; 0 if its family does not say."""
        return self._families[task.family].limits.turns

    def offer(self, task: Task) -> Offer:
        """Returns the tools of a task. WorldError as `Family.offer`."""
        return self._families[task.family].offer(task)

    def open(self, task: Task, sandbox: JudgedSandbox | None) -> CheckedWorld:
        """Returns the world of a task, to be played in a sandbox that it needs."""
        return self._families[task.family].checked(task, sandbox)
