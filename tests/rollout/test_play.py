"""Episodes one after another in sandboxes that are kept, replaced or never started."""

import dataclasses

import pytest

from ale_jax.agent.loop import ScriptedPolicy
from ale_jax.config.agent import AgentLimits
from ale_jax.records import EpisodeKey, Task
from ale_jax.rollout.play import EpisodeRunner
from ale_jax.sandbox.api import SandboxError, SandboxLost, SandboxStartError
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.status import Status
from ale_jax.worlds.api import (
    NoVerdictError,
    Step,
    VerdictRefusedError,
    VerifierError,
    World,
)
from ale_jax.worlds.checked import CheckedWorld
from ale_jax.worlds.items import Item
from tests.rows import each_row

KEY = EpisodeKey("train", 0, 0, Task("count", 1, "train"))
TALK = "talk"  # a family whose environment needs no sandbox


class FakeSandbox:
    def __init__(self, spec):
        self.spec, self.closed = spec, False

    def close(self):
        self.closed = True


class FakeWorld(World):
    """Ends at its first step, as told by the reply: "lose" loses the sandbox, "bug" is one."""

    def reset(self, item, sandbox):
        return "do it"

    def step(self, reply):
        if reply == "lose":
            raise SandboxLost("gone")
        if reply == "bug":
            raise ZeroDivisionError
        return Step(reward=1.0, done=True)


class FakeWorlds:
    """Tasks need a sandbox of their item's name, but for those of TALK."""

    def sandbox(self, task):
        return None if task.family == TALK else SandboxSpec(image=f"image{task.item}")

    def turns(self, task):
        return 0

    def open(self, task, sandbox):
        assert (sandbox is None) if task.family == TALK else not sandbox.closed
        return CheckedWorld(FakeWorld(), Item(task.family, task.item, task.split), sandbox)


class Machines:
    """Starts fake sandboxes, and keeps them all."""

    def __init__(self):
        self.made = []

    def start(self, spec):
        self.made.append(FakeSandbox(spec))
        return self.made[-1]


def runner_on(start):
    return EpisodeRunner(start, FakeWorlds(), AgentLimits(turns=1))


def test_a_sandbox_serves_one_episode_after_the_other():
    machines = Machines()
    runner = runner_on(machines.start)
    played = [runner.play(KEY, ScriptedPolicy(["win"])) for _ in range(3)]
    assert [p.episode.reward for p in played] == [1.0] * 3
    assert [(p.sandboxes_up, p.sandboxes_restarted) for p in played] == [(1, 0)] * 3
    assert len(machines.made) == 1


def test_a_task_gets_a_sandbox_of_its_own_kind_and_those_of_others_make_way():
    machines = Machines()
    runner = runner_on(machines.start)
    for item in (1, 2, 2, 1):
        key = dataclasses.replace(KEY, task=Task("count", item, "train"))
        played = runner.play(key, ScriptedPolicy(["win"]))
        assert (played.sandboxes_up, played.sandboxes_restarted) == (1, 0)
    assert [sandbox.spec.image for sandbox in machines.made] == ["image1", "image2", "image1"]
    assert [sandbox.closed for sandbox in machines.made] == [True, True, False]


class JudgedWorld(FakeWorld):
    """Is judged by what was said, when its sandbox is closed."""

    is_judged_apart = True

    def reset(self, item, sandbox):
        self._sandbox = sandbox
        return "do it"

    def step(self, reply):
        self._said = reply
        return Step(reward={"form": 0.25}, done=True)

    def verdict(self):
        assert self._sandbox.closed
        if self._said == "none":
            raise NoVerdictError("no verdict is possible")
        if self._said == "down":
            raise VerifierError("the judge is down")
        return {"right": 0.5, "form": 0.25}

    def metrics(self):
        return {"asked": 1}


@pytest.mark.parametrize("judges", [False, True])
def test_a_world_that_is_judged_apart_has_left_its_sandbox_by_then(judges, monkeypatch):
    machines = Machines()
    monkeypatch.setattr("tests.rollout.test_play.FakeWorld", JudgedWorld)
    runner = EpisodeRunner(machines.start, FakeWorlds(), AgentLimits(turns=1), judges=judges)

    def play(reply):
        played = runner.play(KEY, ScriptedPolicy([reply]))
        assert played.is_judged == judges and machines.made[-1].closed
        assert (played.sandboxes_up, played.sandboxes_restarted) == (0, 0)
        return played.episode if judges else runner.judge(KEY).episode

    right = play("right")
    assert (right.status, right.reward, right.step_rewards) == (Status.FINISHED, 1.0, (0.25,))
    assert right.rewards == (("form", 0.5), ("right", 0.5)) and right.metrics == (("asked", 1.0),)
    none = play("none")
    assert (none.status, none.reward, none.metrics) == (Status.NO_VERDICT, 0.25, ())
    down = play("down")
    assert (down.status, down.reward) == (Status.VERIFIER_ERROR, None)
    assert down.detail == "VerifierError: the judge is down"


@each_row(
    "failure, is_asked_again",
    [
        (VerifierError("the judge is down"), True),
        (VerdictRefusedError("the judge refuses the key"), False),
        (SandboxLost("it is closed"), False),
        (KeyError("a bug"), False),
        (NoVerdictError("no verdict is possible"), False),
    ],
)
def test_a_verdict_is_asked_for_again_if_that_may_help(failure, is_asked_again, monkeypatch):
    monkeypatch.setattr("tests.rollout.test_play.FakeWorld", JudgedWorld)
    runner = EpisodeRunner(Machines().start, FakeWorlds(), AgentLimits(turns=1), judges=False)
    before = runner.play(KEY, ScriptedPolicy(["right"])).episode
    with monkeypatch.context() as patch:
        patch.setattr(JudgedWorld, "metrics", raising(failure))  # so the verdict failed half-way
        assert runner.judge(KEY).is_judged != is_asked_again
    if is_asked_again:
        again = runner.judge(KEY)
        assert again.is_judged and again.episode.status is before.status is Status.FINISHED
        assert (again.episode.reward, again.episode.rewards) == (
            1.0,
            (("form", 0.5), ("right", 0.5)),
        )
    with pytest.raises(KeyError):  # it is forgotten
        runner.judge(KEY)


def raising(error):
    def call(*arguments):
        raise error

    return call


def test_a_cancelled_episode_is_not_judged(monkeypatch):
    monkeypatch.setattr("tests.rollout.test_play.FakeWorld", JudgedWorld)
    runner = EpisodeRunner(Machines().start, FakeWorlds(), AgentLimits(turns=1), judges=False)
    assert not runner.play(KEY, ScriptedPolicy(["right"])).is_judged
    runner.cancel(KEY)
    with pytest.raises(KeyError):
        runner.judge(KEY)


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
    def refuse(spec):
        raise SandboxStartError("no more memory")

    played = runner_on(refuse).play(KEY, ScriptedPolicy([]))
    assert played.episode.status == Status.SANDBOX_START_FAILED
    assert played.episode.reward is None
    assert "no more memory" in played.episode.detail
    assert 0 <= played.episode.env_seconds <= played.episode.seconds < 60
    assert played.sandboxes_up == 0


def test_a_bug_in_a_world_is_a_status_and_its_sandbox_not_used_again():
    machines = Machines()
    runner = runner_on(machines.start)
    broken = runner.play(KEY, ScriptedPolicy(["bug"])).episode
    assert broken.status == Status.ENV_ERROR and "ZeroDivisionError" in broken.detail
    assert [sandbox.closed for sandbox in machines.made] == [True]


@pytest.mark.parametrize("error", [LookupError, VerifierError, SandboxError])
def test_a_world_that_cannot_be_made_is_a_status(error):
    class Refusing(FakeWorlds):
        def open(self, task, sandbox):
            raise error("no such world")

    runner = EpisodeRunner(Machines().start, Refusing(), AgentLimits(turns=1))
    played = runner.play(KEY, ScriptedPolicy([]))
    assert (played.episode.status, played.sandboxes_up) == (Status.ENV_ERROR, 0)
    assert f"{error.__name__}: no such world" in played.episode.detail


class Cancelling(ScriptedPolicy):
    """Cancels its own episode before it replies."""

    def __init__(self, cancel, replies):
        super().__init__(replies)
        self._cancel = cancel

    def reply(self, new_messages):
        self._cancel()
        return super().reply(new_messages)


def test_a_cancelled_episode_frees_its_sandbox():
    machines = Machines()
    runner = runner_on(machines.start)
    played = runner.play(KEY, Cancelling(lambda: runner.cancel(KEY), ["win"]))
    assert [sandbox.closed for sandbox in machines.made] == [True]
    assert (played.sandboxes_up, played.sandboxes_restarted) == (0, 1)
    again = runner.play(KEY, ScriptedPolicy(["win"]))  # by the next attempt at the same episode
    assert (again.episode.reward, again.sandboxes_up) == (1.0, 1)


def test_an_episode_that_is_cancelled_while_its_sandbox_starts_does_not_begin():
    machines = Machines()

    def start(spec):
        runner.cancel(KEY)
        return machines.start(spec)

    runner = runner_on(start)
    played = runner.play(KEY, ScriptedPolicy(["win"]))
    assert played.episode.status == Status.SANDBOX_START_FAILED
    assert [sandbox.closed for sandbox in machines.made] == [True]


def test_a_cancellation_that_comes_too_late_changes_nothing():
    machines = Machines()
    runner = runner_on(machines.start)
    runner.play(KEY, ScriptedPolicy(["win"]))
    runner.cancel(KEY)
    assert runner.play(KEY, ScriptedPolicy(["win"])).episode.reward == 1.0
    assert len(machines.made) == 1


@pytest.mark.parametrize("is_back", [False, True])
def test_a_cancellation_while_the_sandbox_is_put_back_leaves_no_closed_one(monkeypatch, is_back):
    machines = Machines()
    runner = runner_on(machines.start)
    put_back = runner._put_back

    def cancelled_meanwhile(*sandbox, **why):
        if is_back:
            put_back(*sandbox, **why)
        runner.cancel(KEY)
        if not is_back:
            put_back(*sandbox, **why)

    with monkeypatch.context() as late:
        late.setattr(runner, "_put_back", cancelled_meanwhile)
        runner.play(KEY, ScriptedPolicy(["win"]))
    assert [sandbox.closed for sandbox in machines.made] == [not is_back]
    assert runner.play(KEY, ScriptedPolicy(["win"])).episode.reward == 1.0


def test_a_closed_player_has_no_sandboxes_and_starts_none():
    machines = Machines()
    runner = runner_on(machines.start)
    runner.play(KEY, ScriptedPolicy(["win"]))
    runner.close()
    late = runner.play(KEY, ScriptedPolicy(["win"]))
    assert late.episode.status == Status.SANDBOX_START_FAILED
    assert all(sandbox.closed for sandbox in machines.made)


def test_a_player_that_is_closed_meanwhile_still_says_how_its_episode_ended():
    machines = Machines()
    runner = runner_on(machines.start)
    played = runner.play(KEY, Cancelling(runner.close, ["lose"]))
    assert (played.episode.status, played.sandboxes_up) == (Status.SANDBOX_LOST, 0)
    assert [sandbox.closed for sandbox in machines.made] == [True]
