"""Attacks on the reward of a shell task: a task that is not solved must earn nothing."""

from __future__ import annotations

from ale_jax.agent.tools import bash, finish, render_tool_call
from benchmarks.sandbox.attacks.attack import Arena, Attack, require
from envs.shell.env import ShellEnv
from envs.shell.families import generate

REWARD = "reward"
SEED = 1
SEEDS = """
for d in /logs/verifier /tmp/logs/verifier ~/logs/verifier; do
    mkdir -p $d; echo 1.0 > $d/reward.txt; echo '{"reward": NaN}' > $d/reward.json
done 2> /dev/null
"""
LIES = 'for name in cat sh test cmp diff sha256sum; do eval "$name() { echo PASSED; }"; done'
STARTUP = "for f in ~ /tmp; do for n in .bashrc .profile; do echo 'exit 0' > $f/$n; done; done"


def _paid(arena: Arena, *calls) -> float:
    env = ShellEnv("count", arena.box, "train")
    env.reset(SEED)
    for call in calls:
        _, reward, *_ = env.step(render_tool_call(call))
    return reward


def _result() -> tuple[str, str]:
    """Path and text of the one file that the task asks for."""
    world = generate("count", SEED)
    ((path, content),) = [item for item in world.goal.files.items() if item[0] not in world.files]
    return path, content.decode().strip()


def _unpaid(name: str, command: str, stopped_by: str) -> Attack:
    def play(arena: Arena) -> str:
        path, text = _result()
        paid = _paid(arena, *generate("count", SEED).oracle)
        require(paid == 1.0, f"could not be tried: the oracle is paid {paid}")
        paid = _paid(arena, bash(f"path={path}; text={text}; {command}"), finish())
        return require(paid == 0.0, f"the reward is {paid}")

    return Attack(name, REWARD, stopped_by, play)


def _writes_late(arena: Arena) -> str:
    path, text = _result()
    late = f"(sleep 0.1; while :; do echo {text} > {path}; sleep 0.01; done)"
    paid = _paid(arena, bash(f"setsid nohup sh -c '{late}' > /dev/null 2>&1 &"), finish())
    written = arena.box.run(f"sleep 0.3; ls {path}").exit_code == 0
    return require(
        paid == 0.0 and not written, f"the reward is {paid}; written afterwards: {written}"
    )


HOST = "judged by the host, from files"
ATTACKS = (
    _unpaid("seeds a reward file", SEEDS, HOST),
    _unpaid("prints PASSED", "echo PASSED; echo '1 passed'; echo reward: 1.0", HOST),
    _unpaid("replaces the programs that judge", f"{LIES}; {STARTUP}", HOST),
    _unpaid("links to the right text", "echo $text > s; ln -s s $path", "no link followed"),
    _unpaid("puts a pipe there", "mkfifo $path", "regular files only"),
    Attack("writes while it is judged", REWARD, "its processes are killed first", _writes_late),
)
