"""Whether a folder is accepted, and what is read of it, against harbor itself (`library`)."""

import json
import math
import re
import tomllib
from pathlib import Path

import pytest

from ale_jax.sandbox.verify.verifier import parse_object, parse_text
from ale_jax.worlds.bridges.harbor.dockerfile import Source
from ale_jax.worlds.bridges.harbor.rewards import falls_short, total
from ale_jax.worlds.bridges.harbor.settings import parse
from ale_jax.worlds.bridges.harbor.task import read_task
from ale_jax.worlds.bridges.harbor.world import Harbor
from tests.worlds.bridges.harbor.folders import PLAYED, write
from tests.worlds.bridges.harbor.library import BOUNDS, OBJECTS, REPORTS, STEPS
from tests.worlds.bridges.harbor.refused_folders import NOT_HERE, WRONG

HARBORS = json.loads(Path(__file__).with_name("library.json").read_text())
REFUSED = NOT_HERE | WRONG


def fault(folder) -> str:
    """Why a folder of tasks is refused."""
    with pytest.raises(ValueError) as refusal:
        Harbor(str(folder)).families[folder.name].read()
    return str(refusal.value)


@pytest.mark.parametrize("name", PLAYED)
def test_what_is_played_is_read_as_harbor_reads_it(tmp_path, name):
    task, read = read_task(Source(write(tmp_path / "one", PLAYED[name]))), HARBORS["folders"][name]
    place = task.place
    assert [place.cpus, place.memory_mb, place.storage_mb] == [
        read[field] or 0 for field in ("cpus", "memory_mb", "storage_mb")
    ]
    ours = [
        {
            "instruction": phase.instruction,
            "seconds": None if math.isinf(phase.seconds) else phase.seconds,
            "check_seconds": phase.check.seconds,
            "separate": phase.check.layout is not None,
            "network": phase.reach.mode,
            "check_network": phase.check.reach.mode,
        }
        for phase in task.phases
    ]
    assert ours == read["phases"]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_played_is_refused_by_file_and_field(tmp_path, name):
    changes, words = REFUSED[name]
    write(tmp_path / "tasks" / "one", changes)
    told = fault(tmp_path / "tasks")
    assert "\n" not in told
    assert re.search(words, told), told


@pytest.mark.parametrize("name", REFUSED)
def test_harbor_refuses_what_is_wrong_and_accepts_what_we_lack(name):
    assert (HARBORS["folders"][name] is None) == (name in WRONG)


def used(values, path: str = "") -> set[str]:
    """The fields of a file, each with the table that it stands in."""
    if isinstance(values, list):
        return {field for each in values for field in used(each, path)}
    if not isinstance(values, dict):
        return set()
    found = {f"{path}.{name}" if path else name for name in values}
    return found.union(*(used(value, name) for name, value in values.items()))


def test_the_folders_use_every_field():
    files = [PLAYED[name].get("task.toml", "") for name in PLAYED]
    files += [REFUSED[name][0].get("task.toml", "") for name in NOT_HERE]
    found = set().union(*(used(tomllib.loads(text)) for text in files))
    wanted = {".".join(field.split(".")[-2:]) for field in HARBORS["fields"]}
    wanted = {field.removeprefix("steps.") if "." not in field else field for field in wanted}
    assert wanted - found == set()


@pytest.mark.parametrize("content", REPORTS)
def test_a_reward_is_what_harbor_reads(content):
    assert rewards(parse_text, content) == HARBORS["reward.txt"][content]


@pytest.mark.parametrize("content", OBJECTS)
def test_rewards_are_what_harbor_reads(content):
    assert rewards(parse_object, content) == HARBORS["reward.json"][content]


def rewards(parse, content):
    try:
        return parse(content.encode())
    except ValueError:
        return None


def test_steps_are_added_up_as_harbor_does():
    assert [total(steps, final=False) for steps in STEPS] == HARBORS["totals"]
    assert [total(steps, final=True) for steps in STEPS] == [steps[-1] for steps in STEPS]


def test_a_step_falls_short_where_it_does_for_harbor():
    bounds = [b if isinstance(b, dict) else {"reward": b} for _, b in BOUNDS]
    found = [falls_short(r, b) for (r, _), b in zip(BOUNDS, bounds, strict=True)]
    assert found == HARBORS["falls_short"]


def test_items_have_columns_by_which_results_are_grouped(tmp_path):
    write(tmp_path / "tasks" / "one", PLAYED["old"])
    (row,) = (
        Harbor(str(tmp_path / "tasks"), eval_share=0.0).families["tasks"].rows("train").values()
    )
    assert row["metadata"] == {"author_name": "unknown", "difficulty": "easy"}


def test_a_schema_before_is_read_by_its_old_names():
    old = parse('version = "1.0"\n[environment]\nmemory = "1.5G"\nstorage = "10240M"\n')
    assert (old.machine.memory_mb, old.machine.storage_mb) == (1536, 10240)
