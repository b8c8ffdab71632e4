"""The tasks of bfcl-eval: its results and verdicts, whatever is called."""

import json

import pytest

from ale_jax.agent.loop import ScriptedPolicy, play
from ale_jax.agent.recording import RecordingPolicy
from ale_jax.config.agent import AgentLimits
from ale_jax.config.worlds import Domain
from ale_jax.records import EpisodeKey, Status, Task
from ale_jax.worlds import Call, write_reply
from ale_jax.worlds.duplicates import near_duplicates
from ale_jax.worlds.families import open_families
from ale_jax.worlds.items import SPLITS
from benchmarks.worlds.bfcl import compare
from tests.worlds.bridges.libraries import python_of

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def families():
    return open_families((Domain("bfcl", options=(("python", python_of("bfcl")),)),))


def played(families, name, replies, turns=99):
    family = name.rsplit("_", 1)[0]
    task = Task(family, name, SPLITS[1 - int(name.rsplit("_", 1)[1]) % 2])
    policy, key = RecordingPolicy(ScriptedPolicy(replies)), EpisodeKey("eval/a", 0, 0, task)
    world = families[family].checked(task, None)
    return play(world, policy, key, AgentLimits(turns=turns)), policy.messages


def test_tasks_are_the_librarys():
    found = compare(python_of("bfcl"), 1)
    assert (found.items, found.exceptions, found.episodes) == (8, {}, 72)
    assert (found.gold, found.gold_by_gateway, found.empty) == (8, 8, 0)


def test_variants_of_a_task_are_on_the_same_side(families):
    numbers = {
        split: {name.rpartition("_")[2] for family in families for name in family.items.rows(split)}
        for split in SPLITS
    }
    assert [len(each) for each in numbers.values()] == [100, 100]
    assert not numbers["train"] & numbers["eval"]
    assert not [each for family in families for each in near_duplicates(family.items)]


def test_a_function_that_is_missing_is_told_later(families):
    family = families["multi_turn_miss_func"]
    task = Task(family.name, "multi_turn_miss_func_0", "eval")
    tools = [tool["function"] for tool in family.offer(task).tools]
    names = [tool["name"] for tool in tools]
    assert "sort" not in names and "grep" in names
    assert "dict" not in json.dumps([tool["parameters"]["type"] for tool in tools])
    episode, messages = played(families, task.item, family.oracle(task))
    told = [each.content for each in messages if each.role == "user"]
    assert episode.is_solved and len(told) == 5
    assert '"name": "sort"' in told[3] and "updated some more functions" in told[3]


def test_a_turn_with_too_many_replies_ends_the_episode(families):
    calls = [write_reply("", [Call("pwd", {}), Call("cat", {})])] * 30
    episode, _ = played(families, "multi_turn_base_1", calls)
    assert (episode.status, episode.reward, episode.turns) == (Status.TURN_LIMIT, 0.0, 21)
    assert dict(episode.metrics) == {"calls": 42, "failed_calls": 21}


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        ("__import__('os').system", {"command": "ls"}, "invalid syntax"),
        ("pwd", {"a=open('x', 'w'), b": 1}, "invalid syntax"),
        ("open", {"file": "x", "mode": "r"}, "name 'open' is not defined"),
        ("_load_scenario", {"scenario": {}}, "name '_load_scenario' is not defined"),
        ("execute_multi_turn_func_call", {"func_call_list": ["ls()"]}, "is not defined"),
        ("multi_turn_base_1_GorillaFileSystem_instance", {}, "is not defined"),
    ],
)
def test_only_functions_of_the_library_are_called(name, arguments, result, families):
    """The library evaluates a call as Python, among its own objects."""
    family, item = families["multi_turn_base"], "multi_turn_base_1"
    attack = write_reply("", [Call(name, arguments)])
    _, messages = played(families, item, [attack, "Done."], turns=2)
    told = next(each.content for each in messages if each.role == "tool")
    assert told.startswith("Error during execution: ") and told.endswith(result)
    again, _ = played(families, item, [attack, *family.oracle(Task(family.name, item, "train"))])
    assert again.is_solved, "it has changed nothing"


def test_an_argument_is_a_constant(families):
    said = "') or __import__('os').listdir('/"
    echo = write_reply("", [Call("echo", {"content": said})])
    _, messages = played(families, "multi_turn_base_1", [echo, "Done."], turns=2)
    (told,) = (each.content for each in messages if each.role == "tool")
    assert json.loads(told) == {"terminal_output": said}
