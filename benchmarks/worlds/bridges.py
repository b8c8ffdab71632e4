"""Are tasks the same through a bridge as in their library alone?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ale_jax.worlds.api import NoVerdictError, World
from ale_jax.worlds.bridges.games import Gem, TextArena
from ale_jax.worlds.bridges.process import PlayerError
from ale_jax.worlds.bridges.reasoning_gym import ReasoningGym
from ale_jax.worlds.checked import CheckedWorld, WorldError, text_of
from ale_jax.worlds.items import SEEDS, Item, split_of
from benchmarks.worlds.library_process import answers

ALONE = Path(__file__).with_name("alone.py")
WORLDS = {"reasoning_gym": ReasoningGym, "gem": Gem, "textarena": TextArena}


class Equality(NamedTuple):
    """environments: all that the library has. equal: those of which all episodes were. episodes,
    steps: that were compared. exceptions: the others, with the reason; notes: those that are equal
    but for replies on which the library raises, which are failures here."""

    environments: int
    equal: int
    episodes: int
    steps: int
    exceptions: dict[str, str]
    notes: dict[str, str]


def compare(library: str, python: str, seeds: int, names: Sequence[str] = ()) -> Equality:
    """Plays `seeds` items of each environment on both sides with the same replies, half of them
    of either split."""
    world = WORLDS[library](python)
    halves = (seeds - seeds // 2, seeds // 2)
    chosen = [first.start + n for first, half in zip(SEEDS.values(), halves) for n in range(half)]
    names = tuple(names or world.families)
    exceptions, notes, episodes, steps = {}, {}, 0, 0
    for name, alone in zip(names, _alone(library, python, names, chosen)):
        try:
            found = [_compared(world, name, *each) for each in zip(chosen, alone)]
        except Unequal as error:
            (again,) = _alone(library, python, [name], chosen)
            exceptions[name] = str(error) if again == alone else "the library does not repeat it"
            continue
        except (PlayerError, WorldError) as error:  # as on a machine with too much other work
            exceptions[name] = f"the bridge: {error}"
            continue
        episodes, steps = episodes + len(found), steps + sum(count for count, _ in found)
        if raised := {why for _, each in found for why in each}:
            notes[name] = f"raises {', '.join(sorted(raised))}"
    equal = len(names) - len(exceptions)
    return Equality(len(names), equal, episodes, steps, exceptions, notes)


class Unequal(Exception):
    """What differs; also where the library itself cannot play."""


def _alone(library: str, python: str, names: Sequence[str], seeds: list[int]) -> Iterator[Any]:
    questions = ({"name": name, "seeds": seeds} for name in names)
    return answers(python, ALONE, (library,), questions)


def _compared(world: World, name: str, seed: int, alone: list[Any]) -> tuple[int, list[str]]:
    """Returns how many steps were compared, and what the library raised on replies."""
    for each in alone:
        if isinstance(each, dict):
            raise Unequal(f"the library alone: {each['raised']}".replace("\n", " ")[:160])
    item, (opening, *steps) = Item(name, seed, split_of(seed)), alone
    asks_once = isinstance(world, ReasoningGym)
    if asks_once:
        answer, *last = steps[-1]
        solves = isinstance(answer, str) and last == ["", 1.0, True, False]
        _same(f"seed {seed}, oracle", world.oracle(item), (answer,) if solves else None)
        steps = [step for step in steps if isinstance(step[0], str)]  # not all have an answer
    checked, raised = CheckedWorld(world, item, None), []
    for number, (reply, *step) in enumerate(steps):
        if number == 0 or asks_once:
            _same(f"seed {seed}, opening", text_of(checked.reset()), opening)
        if isinstance(step[0], dict):
            raised.append(step[0]["raised"])
        _same(f"seed {seed}, reply {number} {reply!r}", _step(checked, reply), _plain(step))
    return len(steps), raised


def _step(world: CheckedWorld, reply: str) -> Any:
    try:
        step = world.step(reply)
    except NoVerdictError:
        return ["", 0.0, True, False]
    return [text_of(step.told), step.reward, step.done, step.truncated]


def _plain(step: list[Any]) -> Any:
    """Returns what the loop makes of a step: nobody reads the last observation."""
    if isinstance(step[0], dict):
        return ["", 0.0, True, False]
    observation, reward, terminated, truncated = step
    ends = terminated or truncated
    return ["" if ends else observation, reward, terminated, truncated and not terminated]


def _same(where: str, got: Any, expected: Any) -> None:
    if got != expected:
        raise Unequal(f"{where}: {got!r:.100} instead of {expected!r:.100}")
