"""Attacks on the reward, in a real sandbox: what is not done is not paid."""

import pytest

from ale_jax.agent.tools import bash, finish, render_tool_call
from ale_jax.envs.shell.families import FAMILIES, generate
from ale_jax.envs.shell.task import Goal
from ale_jax.envs.shell.verifier import verify
from ale_jax.sandbox.api import ExecResult
from tests.played_worlds import Played

SEED = 1


def outcome(sandbox, family, *calls) -> float:
    """The reward of the calls; the last one finishes."""
    env = Played(family, sandbox)
    env.reset(SEED)
    for call in calls:
        _, reward, terminated, _, _ = env.step(render_tool_call(call))
    assert terminated
    return reward


def result_of(world) -> tuple[str, str]:
    """Path and text of the one file that the task asks for."""
    [(path, content)] = [item for item in world.goal.files.items() if item[0] not in world.files]
    return path, content.decode().strip()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_oracle_earns_1_and_doing_nothing_0(sandbox, family):
    assert outcome(sandbox, family, *generate(family, SEED).oracle) == 1.0
    assert outcome(sandbox, family, finish()) == 0.0


@pytest.mark.parametrize("family", FAMILIES)
def test_the_sandbox_holds_the_files_of_the_world_alone(sandbox, family):
    env = Played(family, sandbox)
    env.reset(SEED)
    seen = env.step(render_tool_call(bash("find . -type f -printf '%P\\n'")))[0]
    assert sorted(seen.split()) == sorted(generate(family, SEED).files)


@pytest.mark.parametrize("family", ["config", "rename", "count", "script", "sort", "relay"])
def test_collateral_damage_costs_the_reward(sandbox, family):
    world = generate(family, SEED)
    *calls, last = world.oracle
    bystander = next(p for p, c in world.goal.files.items() if c is not None and p in world.files)
    assert outcome(sandbox, family, *calls, bash(f"rm {bystander}"), last) == 0.0
    assert outcome(sandbox, family, *calls, bash(f"echo x >> {bystander}"), last) == 0.0
    assert outcome(sandbox, family, *calls, bash("touch scratch"), last) == 1.0


def test_files_of_an_earlier_episode_are_gone(sandbox):
    world = generate("count", SEED)
    path, number = result_of(world)
    outcome(sandbox, "count", bash(f"echo {number} > {path}"), finish())
    assert outcome(sandbox, "count", finish()) == 0.0


def test_copying_is_not_moving(sandbox):
    grep, move, *rest = generate("sort", SEED).oracle
    copy = bash(move.arguments["command"].replace("mv", "cp"))
    assert outcome(sandbox, "sort", grep, copy, *rest) == 0.0


@pytest.mark.parametrize("hide", ["chmod 000 {0}", "rm {0}; mkdir {0}", "rm {0}; ln -s . {0}"])
def test_what_cannot_be_read_is_not_gone(sandbox, hide):
    grep, move, *rest = generate("sort", SEED).oracle
    _, source, target = move.arguments["command"].split()
    copy = bash(f"cp {source} {target}; {hide.format(source)}")
    assert outcome(sandbox, "sort", grep, copy, *rest) == 0.0


def constant_script() -> tuple[str, str]:
    """The script, and what it is known to print when it works."""
    world = generate("script", SEED)
    [(data, _)] = world.goal.probe.files.items()
    return world.goal.probe.command.split()[1], world.files[data].decode().strip()


def test_a_script_that_prints_a_constant_earns_nothing(sandbox):
    script, word = constant_script()
    assert outcome(sandbox, "script", bash(f"echo 'echo {word}' > {script}"), finish()) == 0.0


def test_startup_files_do_not_repair_a_script(sandbox):
    """A shell function named sh could print the data while the script stays broken."""
    world = generate("script", SEED)
    [(data, _)] = world.goal.probe.files.items()
    poison = f"sh() {{ cat ~/{data}; }}; export -f sh"
    plant = f"for f in ~ /work /tmp; do for n in bashrc bash_profile profile; do echo '{poison}'"
    calls = [bash(f"{plant} > $f/.$n; done; done; cd /; {poison}"), finish()]
    assert outcome(sandbox, "script", *calls) == 0.0


def test_a_script_that_prints_the_data_but_fails_earns_nothing(sandbox):
    *calls, last = generate("script", SEED).oracle
    script, _ = constant_script()
    assert outcome(sandbox, "script", *calls, bash(f"echo exit 3 >> {script}"), last) == 0.0


def test_data_that_cannot_be_swapped_is_wrong_and_no_trouble(sandbox):
    *calls, last = generate("script", SEED).oracle
    directory = calls[1].arguments["command"].removeprefix("ls ")
    assert outcome(sandbox, "script", *calls, bash(f"chmod 555 {directory}"), last) == 0.0


def test_a_script_without_end_is_wrong_and_no_trouble(sandbox):
    script, _ = constant_script()
    assert outcome(sandbox, "script", bash(f"echo 'sleep 60' > {script}"), finish()) == 0.0


def test_background_processes_are_dead_when_the_reward_is_judged(sandbox):
    path, number = result_of(generate("count", SEED))
    writer = f"while :; do echo {number} > {path}; sleep 0.01; done"
    start = bash(f"setsid nohup sh -c '{writer}' > /dev/null 2>&1 & disown; sleep 0.1; cat {path}")
    outcome(sandbox, "count", start, finish())
    assert sandbox.run(f"rm -f {path}; sleep 0.2; ls {path}").exit_code != 0


OBSTACLES = {
    "a pipe that nobody writes": "mkfifo {path}",
    "a directory": "mkdir {path}",
    "a link to the right content": "echo {number} > scratch; ln -s scratch {path}",
    "a link to itself": "ln -s . {path}",
    "a device": "ln -s /dev/zero {path}",
    "more than is ever read": "head -c 3000000 /dev/zero > {path}",
    "a wrong file that nobody may read": "echo x > {path}; chmod 000 {path}",
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_an_obstacle_where_the_result_should_be_is_wrong_and_no_trouble(sandbox, name):
    path, number = result_of(generate("count", SEED))
    command = OBSTACLES[name].format(path=path, number=number)
    assert outcome(sandbox, "count", bash(command), finish()) == 0.0


@pytest.mark.parametrize(("exit_code", "is_gone"), [(1, True), (124, False), (137, False)])
def test_a_file_is_gone_only_if_something_has_looked_for_it(exit_code, is_gone):
    class Box:
        def kill_processes(self):
            pass

        def run(self, command):
            return ExecResult("", exit_code, exit_code == 124, 0, 0.1)

    assert verify(Goal({"word/old.txt": None}), Box(), None) is is_gone
