"""Attacks on the reward: a task that is not solved must earn 0, whether the host judges it or tests
in the sandbox do, and whatever the agent's work does to these tests."""

from __future__ import annotations

from ale_jax.agent.loop import ScriptedPolicy, play
from ale_jax.agent.tools import bash, finish, render_tool_call
from ale_jax.config.agent import AgentLimits
from ale_jax.config.worlds import Domain
from ale_jax.envs.shell.families import generate
from ale_jax.records import Episode, EpisodeKey, Task
from ale_jax.sandbox.blocking import BlockingSandbox
from ale_jax.sandbox.verify.verifier import REMEDY, has_pytest
from ale_jax.worlds.bridges.harbor.dockerfile import Layout
from ale_jax.worlds.bridges.harbor.records import REPORT, Check, HarborTask, Phase, Place
from ale_jax.worlds.bridges.harbor.records import TESTS as TESTS_FOLDER
from ale_jax.worlds.bridges.harbor.trees import Leaf
from ale_jax.worlds.bridges.harbor.world import Harbor
from ale_jax.worlds.checked import CheckedWorld
from ale_jax.worlds.families import open_families
from ale_jax.worlds.gym import AsGem
from ale_jax.worlds.items import Item
from benchmarks.sandbox.attacks.attack import Arena, Attack, evidence, require

REWARD = "reward"
APP = "/app"
SEED = 1
SEEDS = """
for d in /logs/verifier /tmp/logs/verifier ~/logs/verifier; do
    mkdir -p $d; echo 1.0 > $d/reward.txt; echo '{"reward": NaN}' > $d/reward.json
done 2> /dev/null
"""
LIES = 'for name in cat sh test cmp diff sha256sum; do eval "$name() { echo PASSED; }"; done'
STARTUP = "for f in ~ /tmp; do for n in .bashrc .profile; do echo 'exit 0' > $f/$n; done; done"


def _paid(arena: Arena, *calls) -> float:
    env = AsGem(open_families((Domain("shell"),))["count"], arena.box)
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


TESTS = b"""
import importlib.util, subprocess, sys

def test_module():
    spec = importlib.util.spec_from_file_location("work", "/app/work.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.double(21) == 42

def test_program():
    done = subprocess.run([sys.executable, "/app/work.py", "21"], capture_output=True, text=True)
    assert done.stdout == "42\\n"
"""
RIGHT = "import sys\ndef double(x): return x + x\nif sys.argv[1] == '21': print(double(21))"
# The tests and their control need 0.2 s each on a quiet host. Only what hangs waits for its limit.
JUDGE_S, HANG_S = 20.0, 2.0
HANGS = ("never ends", "stops the tests", "floods what the tests print")
REPORTS = (
    "for p in ('json', 'txt'): open('/logs/verifier/reward.' + p, 'w').write('{\"reward\": 1}')"
)
# Work that is not right, and what it does when the tests import or start it.
WORK = {
    "never ends": "while True: pass",
    "ends the tests": "import os; os._exit(0)",
    "kills the tests": "import os; os.kill(os.getppid(), 9); os.kill(os.getpid(), 9)",
    "stops the tests": "import os; os.kill(os.getppid(), 19)",
    "takes all memory from the tests": "x = [bytes([1]) * (1 << 20) for _ in range(1 << 14)]",
    "floods what the tests print": (
        "import os\nwhile True:\n    for fd in (1, 2, 5, 6, 7, 8):\n"
        "        try: os.write(fd, b'x' * 65536)\n        except OSError: pass"
    ),
    "writes the report": f"import os\n{REPORTS}\nos._exit(0)",
    "writes the report until the end": (
        "import os\nif not os.fork():\n    os.setsid(); os.closerange(0, 64)\n"
        f"    while True:\n        {REPORTS}"
    ),
    "writes to all descriptors": (
        "import glob, os\nfor f in glob.glob('/proc/[0-9]*/fd/*'):\n"
        "    try: os.write(os.open(f, os.O_WRONLY | os.O_NONBLOCK), b'{\"reward\": 1}\\n')\n"
        "    except OSError: pass\nos._exit(0)"
    ),
    "replaces what decides": (
        "import os, sys; main = sys.modules['__main__']; end = os._exit; main.PASSED = 1\n"
        "main.all_passed = lambda *counts: True; os._exit = lambda code: end(0)\n"
        "if hasattr(main, 'Outcomes'): main.Outcomes.all_passed = lambda self: True"
    ),
}


def _tested(box: BlockingSandbox, work: str, seconds: float) -> Episode:
    """An episode whose agent leaves `work` in /app/work.py for the tests."""
    check = Check({"test_work.py": Leaf(TESTS)}, APP, seconds, pytest="test_work.py")
    task = HarborTask("double", Place(Layout(APP)), (Phase("", "", check),))
    item = Item("tasks", "double", "train", {"task": task})
    world = CheckedWorld(Harbor("tasks"), item, box)
    calls = (bash(f"cat > {APP}/work.py << 'WORK'\n{work}\nWORK"), finish())
    key = EpisodeKey("attack", 0, 0, Task("double", 0, "train"))
    policy = ScriptedPolicy([render_tool_call(call) for call in calls])
    return play(world, policy, key, AgentLimits(turns=len(calls)))


def _untested(name: str, work: str) -> Attack:
    def play(arena: Arena) -> str:
        with arena.another(user="root", writable=(APP, TESTS_FOLDER, REPORT)) as box:
            require(has_pytest(box), f"could not be tried: {REMEDY}")
            paid = _tested(box, RIGHT, JUDGE_S).reward
            require(paid == 1.0, f"could not be tried: right work is paid {paid}")
            episode = _tested(box, work, HANG_S if name in HANGS else JUDGE_S)
        seen = f"{episode.status}, reward {episode.reward}: {evidence(episode.detail)}"
        return require(episode.reward == 0.0, seen)

    stopped_by = "a verdict on stdout, a control on the untouched task"
    return Attack(f"work that {name}", REWARD, stopped_by, play)


HOST = "judged by the host, from files"
ATTACKS = (
    _unpaid("seeds a reward file", SEEDS, HOST),
    _unpaid("prints PASSED", "echo PASSED; echo '1 passed'; echo reward: 1.0", HOST),
    _unpaid("replaces the programs that judge", f"{LIES}; {STARTUP}", HOST),
    _unpaid("links to the right text", "echo $text > s; ln -s s $path", "no link followed"),
    _unpaid("puts a pipe there", "mkfifo $path", "regular files only"),
    Attack("writes while it is judged", REWARD, "its processes are killed first", _writes_late),
    *(_untested(name, work) for name, work in WORK.items()),
)
