"""Tasksets of verifiers: what the library shows and pays, with its tools and users."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from ale_jax.agent.loop import ScriptedPolicy, play
from ale_jax.agent.transcripts import RecordingPolicy
from ale_jax.config.agent import AgentLimits
from ale_jax.config.worlds import Domain
from ale_jax.records import EpisodeKey, Status, Task
from ale_jax.worlds import Call, write_reply
from ale_jax.worlds.families import open_families
from ale_jax.worlds.items import SPLITS
from tests.worlds.bridges.libraries import python_of

pytestmark = [pytest.mark.heavy, pytest.mark.slow]
ALONE = Path(__file__).with_name("verifiers_alone.py")

SHOP = '''
import verifiers.v1 as vf

__all__ = ["Shop", "ShopEnv"]


class ShopData(vf.TaskData):
    item: str = ""


class Desk(vf.Toolset[vf.ToolsetConfig]):
    @vf.tool
    async def price(self, item: str, count: int = 1) -> str:
        """Returns the price of some items."""
        return str(len(item) * count)


class ShopTask(vf.Task[ShopData]):
    @classmethod
    def toolsets(cls, config):
        return [Desk(vf.ToolsetConfig())]

    @vf.reward(weight=0.75)
    async def right(self, trace: vf.Trace) -> float:
        return float(str(len(self.data.item)) in trace.last_reply)

    @vf.reward(weight=0.25)
    async def polite(self, trace: vf.Trace) -> float:
        return float("please" in trace.last_reply)

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)


class Shop(vf.Taskset[ShopTask, vf.TasksetConfig]):
    def load(self):
        for item in ("tea", "bread", "butter", "milk", "salt"):
            told = ShopData(prompt=f"How much is {item}?", system_prompt="Be kind.", item=item)
            yield ShopTask(told, self.config.task)


class ShopEnv(vf.SingleAgentEnv):
    """A user who asks twice."""

    async def run(self, task, agents):
        async with agents.agent.interaction(task) as talk:
            await talk.turn()
            await talk.turn("Are you sure?")


if __name__ == "__main__":
    Desk.run()
'''
BROKEN = """
import verifiers.v1 as vf

__all__ = ["Broken"]


class BrokenTask(vf.Task[vf.TaskData]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        raise ValueError("no reward today")


class Broken(vf.Taskset[BrokenTask, vf.TasksetConfig]):
    def load(self):
        yield BrokenTask(vf.TaskData(prompt="Go."), self.config.task)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tasksets")
    (made / "vf_shop.py").write_text(SHOP)
    (made / "vf_broken.py").write_text(BROKEN)
    return made


def family_of(folder, taskset, python=""):
    python = python or python_of("verifiers")
    options = (("folder", str(folder)), ("python", python), ("taskset", taskset))
    (family,) = open_families((Domain("verifiers", options=options),))
    return family


def tasks_of(family):
    return [Task(family.name, name, s) for s in SPLITS for name in family.items.rows(s)]


def played(family, task, replies):
    policy = RecordingPolicy(ScriptedPolicy(replies))
    key = EpisodeKey("eval/a", 0, 0, task)
    episode = play(family.checked(task, None), policy, key, AgentLimits(turns=len(replies)))
    return episode, policy.messages


def alone(folder, taskset, position, replies):
    line = [os.path.abspath(python_of("verifiers")), "-P", str(ALONE), taskset, str(position)]
    env = {**os.environ, "PYTHONPATH": str(folder)}
    told = subprocess.run([*line, json.dumps(replies)], env=env, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr[-2000:]
    return json.loads(told.stdout.splitlines()[-1])


def test_a_taskset_is_played_as_in_the_library(folder):
    """With its tools, its user, its rewards and its metrics."""
    family = family_of(folder, "vf_shop")
    task = next(each for each in tasks_of(family) if each.item == "3")
    (tool,) = family.offer(task).tools
    name = tool["function"]["name"]
    assert name.endswith("price") and tool["function"]["parameters"]["required"] == ["item"]
    call = Call(name, {"item": "milk", "count": 1})
    episode, messages = played(family, task, [write_reply("", [call]), "It is 4.", "4, please."])
    assert (episode.status, episode.reward) == (Status.FINISHED, 1.0), episode.detail

    function = {"name": name, "arguments": json.dumps(dict(call.arguments))}
    called = {"index": 0, "id": "call_0", "type": "function", "function": function}
    said = [{"role": "assistant", "content": text} for text in ("", "It is 4.", "4, please.")]
    said[0]["tool_calls"] = [called]
    told = alone(folder, "vf_shop", 3, said)
    assert dict(episode.rewards) == told["rewards"] == {"right": 0.75, "polite": 0.25}
    assert dict(episode.metrics) == told["metrics"] == {"turns": 3.0}
    shown = [[each.role, each.content] for each in messages if each.role != "assistant"]
    assert shown == [each for each in told["shown"] if each[0] != "assistant"]
    assert [role for role, _ in shown] == ["system", "user", "tool", "user"]


def test_what_keeps_the_library_from_a_reward_is_a_failure(folder):
    family = family_of(folder, "vf_broken")
    episode, _ = played(family, tasks_of(family)[0], ["done"])
    assert (episode.status, episode.reward) == (Status.NO_VERDICT, 0.0)
    assert "no reward today" in episode.detail


def test_tasksets_that_cannot_be_played_are_named(folder):
    family = family_of(folder, "vf_nothing")
    with pytest.raises(ValueError, match=r"taskset 'vf_nothing' cannot be played \(.*vf_nothing"):
        tasks_of(family)
