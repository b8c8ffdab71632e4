"""What an agent's program is started with."""

import contextlib
import time

from ale_jax.agent.external import PolicyAccess, play
from ale_jax.config.agent import ExternalAgent
from ale_jax.records import EpisodeKey, Task
from ale_jax.sandbox.api import ProcessResult
from ale_jax.status import Status
from ale_jax.worlds.api import World
from ale_jax.worlds.checked import CheckedWorld
from ale_jax.worlds.items import Item

KEY = EpisodeKey("train", 0, 0, Task("trail", 7, "train"))


class Machine:
    """Remembers the command lines that it was given, and the variables."""

    def __init__(self):
        self.argv, self.env = [], {}

    def relay(self, port, host, target):
        return contextlib.nullcontext()

    def exec(self, argv, timeout, env):
        self.argv, self.env = argv, env
        return ProcessResult("17\n", "", 0, False, 0, 1.0)


class Told(World):
    def __init__(self, instruction):
        self._instruction = instruction

    def reset(self, item, sandbox):
        return self._instruction

    def grade(self, answer=None):
        return answer == "17"


def checked(world):
    return CheckedWorld(world, Item("trail", 7, "train"), None)


def test_names_in_braces_within_an_instruction_are_the_tasks_own():
    instruction = "Replace {url} and {token} in page.tmpl."
    machine, access = Machine(), PolicyAccess("http://127.0.0.1:80/v1", "secret")
    agent = ExternalAgent(
        command=("agent", "--at={url}", "{instruction}", "{x}"), env=(("KEY", "{token}"),)
    )
    episode = play(checked(Told(instruction)), machine, agent, access, KEY)
    assert (episode.status, episode.reward) == (Status.FINISHED, 1.0)
    assert type(episode.reward) is float
    assert machine.argv == ["agent", "--at=http://127.0.0.1:8900/v1", instruction, "{x}"]
    assert machine.env["KEY"] == "secret"


def test_the_time_of_the_verdict_is_told_apart():
    class Slow(Told):
        def grade(self, answer=None):
            time.sleep(0.01)
            return super().grade(answer)

    machine, access = Machine(), PolicyAccess("http://127.0.0.1:80/v1", "secret")
    agent = ExternalAgent(command=("agent", "{instruction}"))
    episode = play(checked(Slow("count")), machine, agent, access, KEY)
    assert 0.01 <= episode.verifier_seconds <= episode.env_seconds


def test_a_world_that_cannot_judge_what_a_program_leaves_is_refused():
    class Ungraded(World):
        def reset(self, item, sandbox):
            return "go"

    access = PolicyAccess("http://127.0.0.1:80/v1", "secret")
    episode = play(checked(Ungraded()), Machine(), ExternalAgent(command=("agent",)), access, KEY)
    assert (episode.status, episode.reward) == (Status.ENV_ERROR, None)
    assert f"family {KEY.task.family!r}: its world has no method grade" in episode.detail
