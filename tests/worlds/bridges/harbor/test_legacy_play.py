"""Tasks of terminal-bench played in real sandboxes, and the proof that they are sound."""

import json

import pytest

from ale_jax.agent.loop import ScriptedPolicy, play
from ale_jax.agent.tools import bash, finish, render_tool_call
from ale_jax.config.agent import AgentLimits
from ale_jax.launch import main
from ale_jax.records import EpisodeKey, Task
from ale_jax.sandbox.spec import WORK, SandboxSpec
from ale_jax.status import Status
from ale_jax.worlds.api import NoVerdictError, VerifierError
from ale_jax.worlds.bridges.harbor import world as harbor
from ale_jax.worlds.bridges.harbor.dockerfile import Source
from ale_jax.worlds.bridges.harbor.place import Room
from ale_jax.worlds.bridges.harbor.task import read_task
from ale_jax.worlds.bridges.harbor.world import Harbor, TaskFolders
from ale_jax.worlds.checked import CheckedWorld
from ale_jax.worlds.items import Item
from tests.runtimes import started_to_judge
from tests.worlds.bridges.harbor.legacy_folders import SOLUTION, TASK, write_task

FREE = {"tests/test_outputs.py": "def test_nothing(): pass"}
HOPELESS = {"tests/test_outputs.py": "def test_all(): assert False"}
ENDS_PYTEST = {"solution.sh": "echo 'import os; os._exit(0)' > /app/solution.py"}
ENDLESS = {"solution.sh": "echo 'while True: pass' > /app/solution.py"}
SHORT = {"task.yaml": TASK.replace("max_test_timeout_sec: 30", "max_test_timeout_sec: 6")}
NEVER_JUDGES = {"tests/test_outputs.py": "import os; os._exit(1)"}


@pytest.fixture(scope="module")
def box(runtime, tmp_path_factory):
    task = task_of(tmp_path_factory.mktemp("tasks"))
    spec = Harbor("tasks").sandbox(item_of(task), SandboxSpec())
    with started_to_judge(runtime, spec) as sandbox:
        yield sandbox


def task_of(folder, changes=None):
    return read_task(Source(write_task(folder / "seven", changes)))


def item_of(task):
    return Item("tasks", task.name, "train", {"task": task})


def begun(task, box):
    """The world of a task after its reset, and the instruction."""
    world = Harbor("tasks")
    return world, world.reset(item_of(task), box)


def solved(task, box):
    """Plays the task's solution."""
    env, _ = begun(task, box)
    for reply in env.oracle(item_of(task)):
        env.step(reply)


def act(world, *calls) -> tuple[list[str], float]:
    """What is observed, and the reward of the last call, which ends the episode."""
    steps = [world.step(render_tool_call(call)) for call in calls]
    assert [step.done for step in steps] == [False] * (len(steps) - 1) + [True]
    return [step.observation for step in steps], steps[-1].reward


@pytest.mark.heavy
def test_the_oracle_earns_1_and_doing_nothing_0(box, tmp_path):
    env, _ = begun(task_of(tmp_path), box)
    replies = env.oracle(item_of(task_of(tmp_path)))
    assert [env.step(reply).reward for reply in replies] == [0.0, 0.0, 0.0, 1.0]
    env, _ = begun(task_of(tmp_path), box)
    assert env.grade() == 0.0


def test_an_episode_by_tool_calls(box, tmp_path):
    task = task_of(tmp_path)
    env, instruction = begun(task, box)
    assert instruction[:16] == "Write a function"
    seen, reward = act(env, bash("pwd; id -un; ls -A /app /tests /logs/verifier"), finish())
    assert seen[0] == "/app\nroot\n/app:\n\n/logs/verifier:\n\n/tests:" and reward == 0.0
    env.reset(item_of(task), box)
    assert act(env, bash(SOLUTION), finish()) == (["(no output)", ""], 1.0)


def test_an_episode_leaves_nothing_for_the_next(box, tmp_path):
    task = task_of(tmp_path)
    env, _ = begun(task, box)
    act(env, bash(f"{SOLUTION} touch /tests/x /logs/verifier/x {WORK}/x /tmp/x"), finish())
    env.reset(item_of(task), box)
    seen, reward = act(
        env, bash("find /app /tests /logs/verifier /work /tmp -mindepth 1"), finish()
    )
    assert (seen[0], reward) == ("(no output)", 0.0)


def test_the_loop_plays_it_and_work_that_prevents_its_verdict_has_failed(box, tmp_path):
    task = task_of(tmp_path, SHORT)
    key = EpisodeKey("eval", 0, 0, Task("tasks", task.name, "train"))

    def played(*calls):
        policy = ScriptedPolicy([render_tool_call(call) for call in calls])
        world = CheckedWorld(Harbor("tasks"), item_of(task), box)
        return play(world, policy, key, AgentLimits(turns=len(calls)))

    right = played(bash(SOLUTION), finish())
    assert (right.status, right.reward) == (Status.FINISHED, 1.0)
    cut_short = played(bash(SOLUTION))
    assert (cut_short.status, cut_short.reward) == (Status.TURN_LIMIT, 1.0)
    for changes in (ENDS_PYTEST, ENDLESS):
        ended = played(bash(changes["solution.sh"]), finish())
        assert (ended.status, ended.reward, ended.turns) == (Status.NO_VERDICT, 0.0, 2)
        again = played(bash(SOLUTION), finish())
        assert (again.status, again.reward) == (Status.FINISHED, 1.0)


def test_text_that_is_no_call_is_answered(box, tmp_path):
    env, _ = begun(task_of(tmp_path), box)
    step = env.step("hello")
    assert step.observation.startswith("error: ") and step.malformed and step.failed
    assert (step.reward, step.done) == (0.0, False)


def test_a_folder_of_tasks_is_a_family_whose_splits_their_names_choose(tmp_path):
    for number in range(20):
        write_task(tmp_path / f"task{number}")
    items = Harbor(str(tmp_path)).families[tmp_path.name]
    assert items == TaskFolders(str(tmp_path), room=Room())
    names = {s: set(items.read()[s]) for s in ("train", "eval")}
    assert len(names["train"] | names["eval"]) == 20 and not names["train"] & names["eval"]
    assert 0 < items.count("eval") < 10
    found = items.find("f", items.evaluation(0, 0), "eval")
    assert found["instruction"].startswith("Write a function")
    before = items.digest()
    (tmp_path / "task3" / "task.yaml").write_text(TASK.replace("Write", "Make"))
    assert items.digest() != before


def test_a_sandbox_without_pytest_is_refused_with_the_line_to_type(box, tmp_path, monkeypatch):
    monkeypatch.setattr(harbor, "has_pytest", lambda sandbox: False)
    with pytest.raises(ValueError, match="type: apt-get install python3-pytest"):
        begun(task_of(tmp_path), box)


def test_a_missing_verdict_is_the_agents_fault_unless_the_tests_never_have_one(box, tmp_path):
    with pytest.raises(NoVerdictError, match="task seven: no report"):
        solved(task_of(tmp_path, ENDS_PYTEST), box)
    with pytest.raises(VerifierError, match=r"task seven: no report.*none of the untouched task"):
        solved(task_of(tmp_path, NEVER_JUDGES), box)


def validated(runtime, folder, capsys) -> tuple[int, dict]:
    """Returns the exit code and what is told of the tasks in `folder`."""
    world = {"world": "terminal_bench", "options": {"folder": str(folder)}}
    options = (f"--world={world}", f"--runtime={runtime.name}", "--workers=2", "--json")
    code = main(["ale-jax", "validate", *options])
    return code, json.loads(capsys.readouterr().out)[folder.name]


@pytest.mark.heavy
def test_sound_tasks_are_found_sound(runtime, box, tmp_path, capsys):
    for name in ("1", "2", "3"):
        write_task(tmp_path / name)
    code, told = validated(runtime, tmp_path, capsys)
    assert (code, told["faults"]) == (0, [])
    assert [told[key] for key in ("items", "oracle", "nothing")] == [3, 3, 0]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("changes", "counts", "fault"),
    [
        (FREE, [1, 1, 1], "doing nothing earns 1"),
        (HOPELESS, [1, 0, 0], "the oracle earns 0"),
        (ENDS_PYTEST, [1, 0, 0], "the oracle earns 0"),
    ],
    ids=["free", "hopeless", "without verdict"],
)
def test_an_unsound_task_is_found_out(runtime, box, tmp_path, capsys, changes, counts, fault):
    write_task(tmp_path / "bad", changes)
    code, told = validated(runtime, tmp_path, capsys)
    assert code == 1 and fault in told["faults"][0]["fault"]
    assert [told[key] for key in ("items", "oracle", "nothing")] == counts


def test_a_damaged_folder_is_named(tmp_path, capsys):
    write_task(tmp_path / "seven", {"solution.sh": None})
    world = {"world": "terminal_bench", "options": {"folder": str(tmp_path)}}
    assert main(["ale-jax", "validate", f"--world={world}"]) == 2
    assert "/seven: solution.sh is missing" in capsys.readouterr().err


def test_a_solution_of_any_size_is_run(box, tmp_path):
    """A long one comes in parts; one that is no text, or has no last line, byte by byte."""
    short = f"{SOLUTION}\n"
    filler = "# \N{SNOWMAN}\n" * 20_000
    for solution in (short, short.rstrip("\n"), f"{filler}{short}", f"END_OF_SCRIPT\n{short}"):
        task = task_of(tmp_path, {"solution.sh": solution})
        world = CheckedWorld(Harbor(str(tmp_path)), item_of(task), box)
        replies = Harbor(str(tmp_path)).oracle(item_of(task))
        key = EpisodeKey("eval", 0, 0, Task("tasks", task.name, "train"))
        episode = play(world, ScriptedPolicy(replies), key, AgentLimits(turns=len(replies)))
        assert (episode.status, episode.reward) == (Status.FINISHED, 1.0)
