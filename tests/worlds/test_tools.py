"""What a world says of an episode beside its rewards: tools, limits and metrics."""

import math

import pytest

from ale_jax.agent.loop import ScriptedPolicy, play
from ale_jax.config.agent import AgentLimits
from ale_jax.config.worlds import Domain
from ale_jax.records import EpisodeKey, Task
from ale_jax.rollout.worker import RolloutWorker, WorkerSpec
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.status import Status
from ale_jax.worlds import Item, Limits, Reply, Seeds, Step, World
from ale_jax.worlds.checked import CheckedWorld, WorldError
from ale_jax.worlds.families import open_families
from ale_jax.worlds.tools import checked_tools
from tests.rows import each_row

TASK = Task("all", 7, "train")
KEY = EpisodeKey("train", 0, 0, TASK)
LIMITS = AgentLimits(turns=3, replay_share=1.0)


def tool(name, **more):
    return {"type": "function", "function": {"name": name, "parameters": {}} | more}


class Telling(World):
    """Tells what it is made with, and how often it was stepped."""

    families = {"all": Seeds()}  # noqa: RUF012
    limits = Limits(turns=3, reply_tokens=20)

    def __init__(self, tools=(), metrics=None):
        self._tools, self._metrics = tools, metrics

    def tools(self, item):
        return self._tools

    def reset(self, item, sandbox):
        self.steps, self.replies = 0, []
        return "go"

    def step(self, reply):
        self.steps += 1
        self.replies.append(reply)
        return Step("on", done=reply == "end")

    def metrics(self):
        return {"steps": self.steps} if self._metrics is None else self._metrics


def checked(**options):
    return CheckedWorld(Telling(**options), Item("all", 7, "train"), None)


def test_a_world_reads_replies_with_their_calls():
    world = Telling()
    world.reset(Item("all", 7, "train"), None)
    CheckedWorld(world, Item("all", 7, "train"), None).step("a")
    assert world.replies == ["a"] and isinstance(world.replies[0], Reply)


def test_an_episode_has_the_metrics_of_its_end():
    episode = play(checked(), ScriptedPolicy(["a", "end"]), KEY, LIMITS)
    assert episode.status is Status.FINISHED, "it was replayed"
    assert episode.metrics == (("steps", 2.0),)


@each_row(
    "metrics, said",
    [
        (3, "metrics 3 must be numbers by name"),
        ({"a": math.nan}, "metric a nan must be a finite number"),
        ({"": 1.0}, "the name of a metric, '' must be text"),
    ],
)
def test_metrics_that_are_none_are_refused(metrics, said):
    world = checked(metrics=metrics)
    world.reset()
    with pytest.raises(WorldError, match=said):
        world.metrics()


@each_row(
    "tools, said",
    [
        (({"name": "ls"},), r"must be \{'type': 'function'"),
        ((tool(""),), "the name '' is empty"),
        ((tool("ls"), tool("ls")), "the name 'ls' is empty or given twice"),
        ((tool("ls", parameters=None),), "a JSON schema"),
    ],
)
def test_tools_that_cannot_be_offered_are_refused(tools, said):
    with pytest.raises(ValueError, match=said):
        checked_tools(tools)


def test_tools_that_cannot_be_offered_end_the_episode():
    domain = Domain("tests.worlds.test_tools:Telling", options=(("tools", ("ls",)),))
    worker = RolloutWorker(WorkerSpec("none", SandboxSpec(), AgentLimits(), (domain,)))
    episode = worker.play(KEY, "http://127.0.0.1:9/v1", "token", None).episode
    worker.close()
    assert episode.status is Status.ENV_ERROR and "tools: 'ls' must be" in episode.detail


def test_a_domain_limits_its_episodes_more_than_their_world():
    domain = Domain("tests.worlds.test_tools:Telling", turns=2, context=99)
    (family,) = open_families((domain,))
    assert family.limits == Limits(2, 20, 99)
