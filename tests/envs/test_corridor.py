"""Corridors: the settings in a family's name, which rooms decide, and what rooms show."""

import re

import numpy as np
import pytest

from ale_jax.envs.corridor.rooms import (
    EXAMPLE,
    FAMILIES,
    LIGHTS,
    Corridor,
    generate,
    noisy_oracle,
    oracle,
    parse,
)
from ale_jax.envs.shell.words import WORDS
from tests.played_worlds import family_of
from tests.rows import each_row

SEEDS = range(60)


@each_row(
    "family, corridor",
    [
        ("corridor-late3", Corridor("late", 3)),
        ("corridor-all", Corridor("all", 16)),
        ("corridor-depth8-all-retries", Corridor("all", 8, depth=8, retries=True)),
        ("corridor-doors2-spread5-distractors0", Corridor("spread", 5, doors=2, distractors=0)),
        (EXAMPLE, Corridor("late", 3, depth=24, doors=4, retries=True, distractors=6)),
    ],
)
def test_a_name_holds_the_settings(family, corridor):
    assert parse(family) == corridor
    assert corridor.family == family


@each_row(
    "family, reason",
    [
        ("corridor", "is no corridor: name it as"),
        ("corridor-late", "is no corridor: name it as"),
        ("corridor-all3", "is no corridor: name it as"),
        ("corridor-middle3", "is no corridor: name it as"),
        ("corridor-late3-depth24", "is no corridor: name it as"),
        ("corridor-late3-depth9999", "is no corridor: name it as"),
        ("corridor-late3\n", "is no corridor: name it as"),
        ("corridor-late03", "must be written 'corridor-late3'"),
        ("corridor-depth16-late3", "must be written 'corridor-late3'"),
        ("corridor-depth7-late3", "depth 7 must be from 8 to 48"),
        ("corridor-depth49-late3", "depth 49 must be from 8 to 48"),
        ("corridor-doors1-late3", "doors 1 must be from 2 to 6"),
        ("corridor-doors7-late3", "doors 7 must be from 2 to 6"),
        ("corridor-late3-distractors25", "distractors 25 must be from 0 to 24"),
        ("corridor-late0", "bottlenecks 0 must be from 1 to 15"),
        ("corridor-late16", "must be from 1 to 15, less than the depth: the place 'all'"),
    ],
)
def test_a_malformed_name_is_refused(family, reason):
    for refuses in (parse, family_of, lambda name: generate(name, 0)):
        with pytest.raises(ValueError, match=re.escape(reason)):
            refuses(family)


@each_row(
    "settings, reason",
    [
        (
            {"place": "middle"},
            "place 'middle' is unknown: choose one of late, early",
        ),
        ({"place": "all"}, "bottlenecks 3 must be the depth, 16, if the place is 'all'"),
    ],
)
def test_settings_that_no_name_can_hold_are_refused(settings, reason):
    with pytest.raises(ValueError, match=reason):
        Corridor(**{"place": "late", "bottlenecks": 3} | settings)


@each_row(
    "family, deciding",
    [
        ("corridor-late3", {13, 14, 15}),
        ("corridor-early3", {0, 1, 2}),
        ("corridor-spread3", {2, 8, 13}),
        ("corridor-depth24-spread4", {3, 9, 15, 21}),
        ("corridor-depth8-spread7", {0, 1, 2, 4, 5, 6, 7}),
        ("corridor-depth8-all", set(range(8))),
    ],
)
def test_the_rooms_that_decide_lie_where_the_name_says(family, deciding):
    for seed in SEEDS:
        assert parse(family).deciding(seed) == deciding
        rooms = generate(family, seed)
        for room, (text, right) in enumerate(zip(rooms.texts, rooms.right, strict=True)):
            behind = LIGHTS[text.rpartition("light: ")[2]]
            assert right == ({behind} if room in deciding else set(rooms.doors))


def test_as_many_rooms_decide_as_are_named():
    for depth in (8, 9, 48):
        for count in range(1, depth):
            for place in ("spread", "any"):
                assert len(Corridor(place, count, depth=depth).deciding(0)) == count


def test_any_rooms_differ_from_task_to_task_and_lie_everywhere():
    drawn = [parse("corridor-any3").deciding(seed) for seed in range(400)]
    counts = np.bincount([room for rooms in drawn for room in rooms], minlength=16)
    assert counts.min() > 45 and counts.max() < 105  # 75 of each, within four standard deviations


def test_doors_and_lights_are_as_many_as_named_and_all_are_drawn():
    for count in (2, 6):
        drawn = [generate(f"corridor-doors{count}-late3", seed) for seed in SEEDS]
        lights = {text.rpartition(" ")[2] for rooms in drawn for text in rooms.texts}
        assert lights == set(list(LIGHTS)[:count])
        assert {door for rooms in drawn for door in rooms.taken} == set(drawn[0].doors)
        assert len(drawn[0].doors) == count


def test_the_oracle_follows_the_light_only_where_it_decides():
    follows = np.array(
        [
            [LIGHTS[text.rpartition(" ")[2]] == door for text, door in zip(r.texts, r.taken)]
            for r in (generate("corridor-late3", seed) for seed in range(400))
        ]
    )
    assert follows[:, 13:].all()
    assert 0.30 < follows[:, :13].mean() < 0.37  # one door of three


def test_words_beside_a_light_tell_nothing_of_it():
    """They are the same whatever the lights are, and the lights are the same without them."""
    for seed in SEEDS:
        three, six, none = (
            generate(f"corridor-{name}", seed)
            for name in ("late3-distractors6", "doors6-late3-distractors6", "late3-distractors0")
        )
        words = [text.partition(" light: ")[0] for text in three.texts]
        assert words == [text.partition(" light: ")[0] for text in six.texts]
        assert all(
            len(set(each.split())) == 6 and set(each.split()) <= set(WORDS) for each in words
        )
        assert none.texts == tuple(f"light: {text.rpartition(' ')[2]}" for text in three.texts)
        assert (none.right, none.taken) == (three.right, three.taken)
    assert three.texts != six.texts
    assert not set(WORDS) & {*LIGHTS, *LIGHTS.values()}


def test_families_that_differ_in_the_bottlenecks_show_the_same():
    """So nothing that a room shows tells whether it decides."""
    places = ("late3", "early3", "spread5", "any3", "all", "all-retries")
    for seed in SEEDS:
        assert len({generate(f"corridor-{place}", seed).texts for place in places}) == 1


def test_seeds_are_different_corridors_and_the_same_ones_again():
    drawn = [generate("corridor-late3", seed) for seed in range(200)]
    assert len({rooms.texts for rooms in drawn}) == 200
    assert drawn == [generate("corridor-late3", seed) for seed in range(200)]


def test_texts_and_commands_are_short():
    for family in (*FAMILIES, "corridor-doors6-all"):
        rooms = generate(family, 0)
        assert len(rooms.instruction.split()) <= 20
        assert max(len(text.split()) for text in rooms.texts) == 5
        *doors, last = oracle(family, 0)
        assert {len(call.arguments["command"].split()) for call in doors} == {2}
        assert (len(doors), last.name) == (16, "finish")


def test_the_noisy_oracle_names_a_door_wrong_twice_and_then_right():
    for seed in SEEDS:
        straight, noisy = oracle("corridor-late3", seed), noisy_oracle("corridor-late3", seed)
        at = next(i for i, (a, b) in enumerate(zip(straight, noisy)) if a != b)
        assert noisy[at] == noisy[at + 1]
        assert (*noisy[:at], *noisy[at + 2 :]) == straight
        wrong = noisy[at].arguments["command"].removeprefix("echo ").removesuffix(">door")
        assert wrong not in LIGHTS.values()
