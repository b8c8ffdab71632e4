"""The tiers of the tests, and the rule that keeps the first one quick.

    make check      tests without a mark: they start no runtime and no process, and compile little
    make test       those, and the tests marked `heavy`
    make test-slow  the tests marked `slow`, of which `.ci/run` takes one eighth

A test that needs one of RUNTIME_FIXTURES is `heavy` by itself. An unmarked test that starts a
process or asks Docker fails: it would make `make check` slow, or fail where a runtime is missing.
"""

from __future__ import annotations

import itertools
import platform
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

MARKS = ("heavy", "slow")
RUNTIME_FIXTURES = {"runtime", "pytest_runtime", "each_runtime", "runtime_name", "sandbox"}
RUNTIME_FIXTURES |= {"ray", "cluster"}
# What Python reports when it starts a process (see "Audit events" in its documentation).
STARTS = {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}


class Starts:
    """Counts the processes that this process has started and its connections to Docker, and knows
    which fixtures made some."""

    def __init__(self) -> None:
        self.count = 0
        self.fixtures: set[pytest.FixtureDef] = set()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        asks_docker = event == "socket.connect" and "docker.sock" in str(arguments[1])
        self.count += event in STARTS or asks_docker


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part",
        metavar="K/N",
        help="only every Nth of the selected files, counted from K (0 <= K < N)",
    )


def pytest_configure(config: pytest.Config) -> None:
    platform.processor()  # runs `uname -p`, once in a process, in whichever test asks for it first
    config.stash[STARTED] = Starts()


STARTED = pytest.StashKey[Starts]()


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_itemcollected(item: pytest.Item) -> None:
    if RUNTIME_FIXTURES & set(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.heavy)


@pytest.hookimpl(trylast=True)  # after pytest has selected by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if part := config.getoption("part"):
        number, _, parts = part.partition("/")
        chosen = part_of_files({item.path for item in items}, int(number), int(parts))
        config.hook.pytest_deselected(items=[item for item in items if item.path not in chosen])
        items[:] = [item for item in items if item.path in chosen]


def part_of_files(files: Iterable[Path], number: int, parts: int) -> set[Path]:
    """Returns every `parts`th file, so that all numbers below `parts` together return each once.

    ValueError if there is no such part.
    """
    if not 0 <= number < parts:
        raise ValueError(f"part {number} of {parts} does not exist: choose 0 to {parts - 1}")
    return set(sorted(files)[number::parts])


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef, request: pytest.FixtureRequest):
    starts = request.config.stash[STARTED]
    before = starts.count
    value = yield
    if starts.count > before:
        starts.fixtures.add(fixturedef)
    return value


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    starts = item.config.stash[STARTED]
    before = starts.count
    result = yield
    is_marked = any(item.get_closest_marker(mark) for mark in MARKS)
    # By name, as pytest's public interface has them, the fixtures of two files could be confused.
    fixtures = itertools.chain(*item._fixtureinfo.name2fixturedefs.values())
    if not is_marked and (starts.count > before or starts.fixtures & set(fixtures)):
        pytest.fail(
            "starts a process or asks Docker: mark it `heavy`, or `slow` (tests/tiers.py)",
            pytrace=False,
        )
    return result
