"""Episodes one after another in sandboxes that are kept, replaced or never started."""

import dataclasses

import pytest

from ale_jax.agent.loop import AgentLimits, ScriptedPolicy
from ale_jax.records import EpisodeKey, Status, Task
from ale_jax.rollout.play import EpisodeRunner
from ale_jax.sandbox.api import SandboxLost, SandboxStartError

KEY = EpisodeKey("train", 0, 0, Task("count", 1, "train"))
TALK = "talk"  # a family whose environment needs no sandbox


class FakeSandbox:
    def __init__(self):
        self.closed = False

    def close(self):
        self.closed = True


class FakeEnv:
    """Ends at its first step, as told by the action: "lose" loses the sandbox, "bug" is one."""

    system_prompt = ""

    def __init__(self, task, sandbox):
        assert (sandbox is None) if task.family == TALK else not sandbox.closed

    def reset(self, seed):
        return "do it", {}

    def step(self, action):
        if action == "lose":
            raise SandboxLost("gone")
        if action == "bug":
            raise ZeroDivisionError
        return "", 1.0, True, False, {"malformed": False}


class Machines:
    """Starts fake sandboxes, and keeps them all."""

    def __init__(self):
        self.made = []

    def start(self):
        self.made.append(FakeSandbox())
        return self.made[-1]


def runner_on(start):
    return EpisodeRunner(start, FakeEnv, lambda task: task.family != TALK, AgentLimits(turns=1))


def test_a_sandbox_serves_one_episode_after_the_other():
    machines = Machines()
    runner = runner_on(machines.start)
    played = [runner.play(KEY, ScriptedPolicy(["win"])) for _ in range(3)]
    assert [p.episode.reward for p in played] == [1.0] * 3
    assert [(p.sandboxes_up, p.sandboxes_restarted) for p in played] == [(1, 0)] * 3
    assert len(machines.made) == 1


def test_a_task_that_needs_no_sandbox_has_none_started():
    machines = Machines()
    key = dataclasses.replace(KEY, task=Task(TALK, 1, "train"))
    played = runner_on(machines.start).play(key, ScriptedPolicy(["win"]))
    assert (played.episode.reward, played.sandboxes_up) == (1.0, 0)
    assert machines.made == []


def test_a_lost_sandbox_is_replaced():
    machines = Machines()
    runner = runner_on(machines.start)
    lost = runner.play(KEY, ScriptedPolicy(["lose"]))
    assert (lost.episode.status, lost.episode.reward) == (Status.SANDBOX_LOST, None)
    assert (lost.sandboxes_up, lost.sandboxes_restarted) == (0, 1)
    assert runner.play(KEY, ScriptedPolicy(["win"])).episode.reward == 1.0
    assert [sandbox.closed for sandbox in machines.made] == [True, False]


def test_a_sandbox_that_does_not_start_is_a_status():
    def refuse():
        raise SandboxStartError("no more memory")

    played = runner_on(refuse).play(KEY, ScriptedPolicy([]))
    assert played.episode.status == Status.SANDBOX_START_FAILED
    assert played.episode.reward is None
    assert "no more memory" in played.episode.detail
    assert played.sandboxes_up == 0


def test_a_bug_is_raised_and_its_sandbox_not_used_again():
    machines = Machines()
    runner = runner_on(machines.start)
    with pytest.raises(ZeroDivisionError):
        runner.play(KEY, ScriptedPolicy(["bug"]))
    assert [sandbox.closed for sandbox in machines.made] == [True]


def test_a_closed_player_has_no_sandboxes_and_starts_none():
    machines = Machines()
    runner = runner_on(machines.start)
    runner.play(KEY, ScriptedPolicy(["win"]))
    runner.close()
    late = runner.play(KEY, ScriptedPolicy(["win"]))
    assert late.episode.status == Status.SANDBOX_START_FAILED
    assert all(sandbox.closed for sandbox in machines.made)
