"""The environment with a sandbox in memory: seeds, malformed calls, observations, trouble."""

import pytest

from ale_jax.agent.tool_steps import observation
from ale_jax.agent.tools import bash, finish, render_tool_call
from ale_jax.envs.shell.env import Shell
from ale_jax.envs.shell.families import generate
from ale_jax.sandbox.api import ExecResult, SandboxLost
from ale_jax.worlds.api import VerifierError
from ale_jax.worlds.checked import WorldError
from ale_jax.worlds.items import Item
from tests.played_worlds import Played
from tests.rows import each_row


class FilesInMemory:
    """As much of a sandbox as the environment needs to start and to judge."""

    def __init__(self, lost_in=""):
        self.lost_in = lost_in
        self.files = {}
        self.commands = []
        self.killed = False

    def _maybe_lost(self, where):
        if where == self.lost_in:
            raise SandboxLost(f"gone in {where}")

    def reset(self):
        self._maybe_lost("reset")
        self.files = {}

    def write(self, files):
        self.files.update(files)

    def run(self, command, timeout=None):
        self._maybe_lost("run")
        self.commands.append(command)
        return ExecResult("out\n", 0, False, 0, 0.0)

    def kill_processes(self):
        self._maybe_lost("kill_processes")
        self.killed = True

    def read(self, path, max_bytes=1 << 20):
        assert self.killed, "judged while the agent could still act"
        self._maybe_lost("read")
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]


def act(env, call):
    return env.step(render_tool_call(call))


def test_reset_puts_the_world_and_nothing_else_into_the_sandbox():
    sandbox = FilesInMemory()
    instruction, info = Played("trail", sandbox).reset(3)
    world = generate("trail", 3)
    assert (instruction, info) == (world.instruction, {})
    assert sandbox.files == world.files


def test_a_command_is_run_and_shown():
    sandbox = FilesInMemory()
    env = Played("trail", sandbox)
    env.reset(0)
    assert act(env, bash("ls")) == ("out", 0.0, False, False, {"malformed": False, "failed": False})
    assert sandbox.commands == ["ls"]


def test_a_malformed_call_is_an_observation_and_nothing_runs():
    sandbox = FilesInMemory()
    env = Played("trail", sandbox)
    env.reset(0)
    seen, reward, terminated, truncated, info = env.step("ls")
    assert seen == "error: no <tool_call> in the reply"
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info == {"malformed": True, "failed": True}
    assert sandbox.commands == []


@each_row("said, reward", [("{}", 1.0), (" {}\n", 1.0), ("{}s", 0.0), ("", 0.0)])
def test_the_answer_decides(said, reward):
    env = Played("trail", FilesInMemory())
    env.reset(0)
    call = finish(said.format(generate("trail", 0).goal.answer))
    assert act(env, call) == ("", reward, True, False, {"malformed": False, "failed": False})


def test_an_answer_task_cut_short_earns_nothing():
    env = Played("trail", FilesInMemory())
    env.reset(0)
    assert env.grade() == 0.0


def test_a_state_task_cut_short_is_graded_as_it_stands():
    sandbox = FilesInMemory()
    env = Played("config", sandbox)
    env.reset(0)
    sandbox.write(generate("config", 0).goal.files)
    assert env.grade() == 1.0


@pytest.mark.parametrize("where", ["kill_processes", "read"])
def test_a_sandbox_lost_under_the_verifier_is_no_verdict(where):
    env = Played("config", FilesInMemory(lost_in=where))
    env.reset(0)
    with pytest.raises(VerifierError, match=f"gone in {where}"):
        act(env, finish())


@pytest.mark.parametrize("where", ["reset", "run"])
def test_a_sandbox_lost_elsewhere_is_lost(where):
    env = Played("config", FilesInMemory(lost_in=where))
    with pytest.raises(SandboxLost):
        env.reset(0)
        act(env, bash("ls"))


def test_an_episode_is_judged_once():
    env = Played("trail", FilesInMemory())
    env.reset(0)
    act(env, finish("wrong"))
    with pytest.raises(WorldError, match="needs a reset"):
        act(env, finish(generate("trail", 0).goal.answer))
    with pytest.raises(WorldError, match="needs a reset"):
        env.grade()


@each_row(
    "output, exit_code, timed_out, omitted_bytes, shown",
    [
        ("a\nb\n", 0, False, 0, "a\nb"),
        ("", 0, False, 0, "(no output)"),
        ("\n", 0, False, 0, "(no output)"),
        ("", 1, False, 0, "(no output)\n[exit 1]"),
        (
            "cat: x: No such file or directory\n",
            1,
            False,
            0,
            "cat: x: No such file or directory\n[exit 1]",
        ),
        ("half", 124, True, 0, "half\n[timed out]"),
        ("head\ntail\n", 2, False, 500, "head\ntail\n[500 bytes left out]\n[exit 2]"),
    ],
)
def test_what_the_policy_sees_of_a_command(output, exit_code, timed_out, omitted_bytes, shown):
    assert observation(ExecResult(output, exit_code, timed_out, omitted_bytes, 0.1)) == shown


@pytest.mark.heavy
def test_a_saved_state_is_played_to_its_end(sandbox):
    world, item = Shell(), Item("rename", 3, "train")
    world.reset(item, sandbox)
    first, *rest = world.oracle(item)
    world.step(first)
    saved = world.save()
    assert saved is not None
    sandbox.reset()
    again = Shell()
    assert again.load(item, sandbox, saved)
    steps = [again.step(reply) for reply in rest]
    assert (steps[-1].done, steps[-1].reward) == (True, 1.0)
