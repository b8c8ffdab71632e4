"""Treks and vaults: what their lights say of their doors."""

import re

import pytest

from ale_jax.envs.shell.families import generate
from ale_jax.envs.shell.families.trek import DOORS


def _crossings(family, seed):
    """[light, door that leads on] of a world, from the oracle's way through its files."""
    world, room, found = generate(family, seed), "", []
    for call in world.oracle[1:-1]:
        light = world.files[f"{room}note.txt"].decode().removeprefix("light: ").strip()
        door = re.fullmatch("cd ([a-z]+) && cat note.txt", call.arguments["command"])[1]
        found.append((light, door))
        room += f"{door}/"
    assert world.files[f"{room}note.txt"].decode() == f"code: {world.goal.answer}\n"
    return found


@pytest.mark.parametrize(("family", "low", "high"), [("trek", 0.15, 0.25), ("vault", 1.0, 1.0)])
def test_lights_guide_in_vaults_and_warn_in_treks(family, low, high):
    found = [crossing for seed in range(100) for crossing in _crossings(family, seed)]
    for light, behind in DOORS.items():
        doors = [door for seen, door in found if seen == light]
        assert low <= doors.count(behind) / len(doors) <= high


@pytest.mark.parametrize("family", ["trek", "vault"])
def test_a_wrong_door_ends_in_a_code_of_its_own(family):
    world = generate(family, 0)
    codes = [text for text in world.files.values() if text.startswith(b"code: ")]
    assert len(set(codes)) == len(codes) == len(world.oracle) - 1  # a wrong one each, and the right
