"""The generators: the same seed is the same world, other seeds are others, no answer is common."""

import collections
import hashlib
import importlib
import os
import re
import subprocess
import sys

import pytest

from ale_jax.envs.shell.families import (
    FAMILIES,
    HELD_OUT_FAMILIES,
    LONG_FAMILIES,
    TRAIN_FAMILIES,
    generate,
)
from ale_jax.envs.shell.words import WORDS
from ale_jax.worlds.items import SEEDS
from tests.rows import each_row

EVERY_FAMILY = each_row("family", FAMILIES)


def digest() -> str:
    """Of all that a world is, over all families."""
    worlds = [generate(family, seed) for family in FAMILIES for seed in (0, 1, 2**31 - 1)]
    return hashlib.sha256(repr(worlds).encode()).hexdigest()


@pytest.mark.heavy
def test_a_seed_is_the_same_world_in_another_process():
    command = [sys.executable, "-c", f"from {__name__} import digest; print(digest())"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "12345"}
    other = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == digest()


@EVERY_FAMILY
def test_seeds_are_different_worlds(family):
    assert len({repr(generate(family, seed)) for seed in range(200)}) == 200


def test_families_with_one_seed_draw_different_names():
    drawn = [generate(family, 0) for family in FAMILIES]
    assert len({(next(iter(world.files)), world.goal.answer) for world in drawn}) == len(FAMILIES)


@EVERY_FAMILY
def test_no_result_is_common(family):
    """Whoever always says or writes the same is right in less than one world of fifteen."""
    results = collections.Counter(_result(generate(family, seed)) for seed in range(200))
    assert max(results.values()) < 200 / 15


def _result(world) -> str:
    if world.goal.answer is not None:
        return world.goal.answer
    if world.goal.probe is not None:
        return world.goal.probe.output
    changed = {p: c for p, c in world.goal.files.items() if c is not None}
    return repr(sorted(c for p, c in changed.items() if world.files.get(p) != c))


@EVERY_FAMILY
def test_the_goal_spares_every_other_file(family):
    world = generate(family, 5)
    free = set(world.files) - set(world.goal.files)
    assert len(free) == (1 if family == "script" else 0)


@EVERY_FAMILY
def test_nothing_is_expected_that_stands_in_the_world_already(family):
    for seed in range(50):
        world = generate(family, seed)
        untouched = all(world.files.get(p) == c for p, c in world.goal.files.items())
        assert not untouched or world.goal.answer or world.goal.probe


@EVERY_FAMILY
def test_instructions_and_episodes_are_short(family):
    for seed in range(100):
        world = generate(family, seed)
        assert len(world.instruction.split()) <= 20
        assert len(world.oracle) in (range(8, 13) if family in LONG_FAMILIES else range(3, 9))
        assert world.oracle[-1].name == "finish"


@EVERY_FAMILY
def test_every_wording_is_used(family):
    drawn = re.compile(rf"[^ ]*({'|'.join(WORDS)})[^ .,:?]*([.][a-z]+)?")
    instructions = [generate(family, seed).instruction for seed in range(100)]
    wordings = importlib.import_module(f"ale_jax.envs.shell.families.{family}").WORDINGS
    patterns = {drawn.sub("_", instruction) for instruction in instructions}
    assert patterns == {re.sub("{[a-z]+}", "_", wording) for wording in wordings}


def test_the_splits_share_no_seed_and_the_families_no_role():
    assert SEEDS["train"].stop == SEEDS["eval"].start == 2**30
    roles = (TRAIN_FAMILIES, HELD_OUT_FAMILIES, LONG_FAMILIES)
    assert sorted(family for role in roles for family in role) == sorted(FAMILIES)
    assert list(map(len, roles)) == [9, 2, 2]


def test_an_unknown_family_is_refused():
    with pytest.raises(ValueError, match="unknown family 'chess', expected one of: trail"):
        generate("chess", 0)
