"""Tasks of terminal-bench played in real sandboxes, and the proof that they are sound."""

import json

import pytest

from ale_jax.agent.api import NoVerdictError, VerifierError
from ale_jax.agent.loop import ScriptedPolicy, play
from ale_jax.agent.tools import bash, finish, render_tool_call
from ale_jax.config.agent import AgentLimits
from ale_jax.envs.terminal_bench import env as world
from ale_jax.envs.terminal_bench import validate
from ale_jax.envs.terminal_bench.env import SPEC, TerminalBenchEnv, score
from ale_jax.envs.terminal_bench.task import read_task
from ale_jax.records import EpisodeKey, Task
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.spec import WORK
from ale_jax.sandbox.verify.verifier import REMEDY, has_pytest
from ale_jax.status import Status
from tests.envs.task_folders import SOLUTION, TASK, write_task
from tests.runtimes import PROBES, play_on

FREE = {"tests/test_outputs.py": "def test_nothing(): pass"}
HOPELESS = {"tests/test_outputs.py": "def test_all(): assert False"}
ENDS_PYTEST = {"solution.sh": "echo 'import os; os._exit(0)' > /app/solution.py"}
ENDLESS = {"solution.sh": "echo 'while True: pass' > /app/solution.py"}
SHORT = {"task.yaml": TASK.replace("max_test_timeout_sec: 30", "max_test_timeout_sec: 3")}
NEVER_JUDGES = {"tests/test_outputs.py": "import os; os._exit(1)"}


def pytest_generate_tests(metafunc):
    if "runtime" in metafunc.fixturenames:
        play_on(metafunc, "runtime", both=True)


@pytest.fixture(scope="session")
def runtime(request):
    if reason := PROBES[request.param](SPEC):
        pytest.skip(f"{request.param}: {reason}")
    return pick_runtime(request.param, SPEC)


@pytest.fixture(scope="module")
def box(runtime):
    with runtime.start(SPEC, {"role": "test"}) as sandbox:
        if not has_pytest(sandbox):
            pytest.skip(f"{runtime.name}: {REMEDY}; or type: make runtimes")
        yield sandbox


def task_of(folder, changes=None):
    return read_task(write_task(folder / "seven", changes))


def act(env, *calls) -> tuple[list[str], float]:
    """What is observed, and the reward of the last call, which ends the episode."""
    steps = [env.step(render_tool_call(call)) for call in calls]
    assert [terminated for _, _, terminated, _, _ in steps] == [False] * (len(steps) - 1) + [True]
    return [observation for observation, *_ in steps], steps[-1][1]


@pytest.mark.heavy
def test_the_oracle_earns_1_and_doing_nothing_0(box, tmp_path):
    task = task_of(tmp_path)
    assert score(task, box, oracle=True) == 1.0
    assert score(task, box, oracle=False) == 0.0


def test_an_episode_by_tool_calls(box, tmp_path):
    env = TerminalBenchEnv([task_of(tmp_path)], box)
    instruction, info = env.reset(0)
    assert (instruction[:16], info) == ("Write a function", {"task": "seven"})
    seen, reward = act(env, bash("pwd; id -un; ls -A /app /tests /logs/verifier"), finish())
    assert seen[0] == "/app\nroot\n/app:\n\n/logs/verifier:\n\n/tests:" and reward == 0.0
    env.reset(0)
    assert act(env, bash(SOLUTION), finish()) == (["(no output)", ""], 1.0)


def test_an_episode_leaves_nothing_for_the_next(box, tmp_path):
    env = TerminalBenchEnv([task_of(tmp_path)], box)
    env.reset(0)
    act(env, bash(f"{SOLUTION} touch /tests/x /logs/verifier/x {WORK}/x /tmp/x"), finish())
    env.reset(0)
    seen, reward = act(
        env, bash("find /app /tests /logs/verifier /work /tmp -mindepth 1"), finish()
    )
    assert (seen[0], reward) == ("(no output)", 0.0)


def test_the_loop_plays_it_and_work_that_prevents_its_verdict_has_failed(box, tmp_path):
    env = TerminalBenchEnv([task_of(tmp_path, SHORT)], box)
    key = EpisodeKey("eval", 0, 0, Task("terminal_bench", 0, "eval"))

    def played(*calls):
        policy = ScriptedPolicy([render_tool_call(call) for call in calls])
        return play(env, policy, key, AgentLimits(turns=len(calls)))

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
    env = TerminalBenchEnv([task_of(tmp_path)], box)
    env.reset(0)
    observation, reward, terminated, truncated, info = env.step("hello")
    assert observation.startswith("error: ") and info == {"malformed": True, "failed": True}
    assert (reward, terminated, truncated) == (0.0, False, False)


@pytest.mark.parametrize("seed", [-1, 1])
def test_a_seed_without_a_task_is_refused(box, tmp_path, seed):
    env = TerminalBenchEnv([task_of(tmp_path)], box)
    with pytest.raises(ValueError, match="none of the 1 tasks"):
        env.reset(seed)


def test_a_sandbox_without_pytest_is_refused_with_the_line_to_type(box, tmp_path, monkeypatch):
    monkeypatch.setattr(world, "has_pytest", lambda sandbox: False)
    with pytest.raises(ValueError, match="type: apt-get install python3-pytest"):
        TerminalBenchEnv([task_of(tmp_path)], box)


def test_a_missing_verdict_is_the_agents_fault_unless_the_tests_never_have_one(box, tmp_path):
    with pytest.raises(NoVerdictError, match="task seven: no report"):
        score(task_of(tmp_path, ENDS_PYTEST), box, oracle=True)
    with pytest.raises(VerifierError, match=r"task seven: no report.*none of the untouched task"):
        score(task_of(tmp_path, NEVER_JUDGES), box, oracle=True)


def run(runtime, folder, capsys, *options) -> tuple[int, dict, str]:
    """Exit code, last line and all output of the command."""
    code = validate.main([str(folder), f"--runtime={runtime.name}", *options])
    printed = capsys.readouterr().out
    return code, json.loads(printed.splitlines()[-1]), printed


@pytest.mark.heavy
def test_sound_tasks_are_found_sound(runtime, box, tmp_path, capsys):
    for name in ("1", "2", "3"):
        write_task(tmp_path / name)
    write_task(tmp_path / "bad", HOPELESS)
    code, told, printed = run(runtime, tmp_path, capsys, "--exclude=bad", "--workers=2")
    assert code == 0
    assert [told[key] for key in ("tasks", "oracle", "nop", "no_verdict")] == [3, 3, 0, 0]
    assert told["runtime"] == runtime.name and 0 < told["episode_s_p50"] <= told["episode_s_p95"]
    assert len(printed.splitlines()) == 5 and "UNSOUND" not in printed


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("changes", "counts"),
    [(FREE, [1, 1, 1, 0]), (HOPELESS, [1, 0, 0, 0]), (ENDS_PYTEST, [1, 0, 0, 1])],
    ids=["free", "hopeless", "without verdict"],
)
def test_an_unsound_task_is_found_out(runtime, box, tmp_path, capsys, changes, counts):
    write_task(tmp_path / "bad", changes)
    code, told, printed = run(runtime, tmp_path, capsys)
    assert code == 1 and "UNSOUND" in printed
    assert [told[key] for key in ("tasks", "oracle", "nop", "no_verdict")] == counts


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--workers=0"], "--workers 0 must be at least 1"),
        (["--exclude=nobody"], "tasks nobody are excluded"),
        (["--runtime=podman"], "'podman' must be one of"),
    ],
)
def test_a_mistake_on_the_command_line_is_named(tmp_path, capsys, options, fault):
    write_task(tmp_path / "1")
    with pytest.raises(SystemExit) as end:
        validate.main([str(tmp_path), *options])
    assert end.value.code == 2 and fault in capsys.readouterr().err


def test_a_damaged_folder_is_named(tmp_path, capsys):
    write_task(tmp_path / "seven", {"solution.sh": None})
    with pytest.raises(SystemExit) as end:
        validate.main([str(tmp_path)])
    assert end.value.code == 2 and "/seven: solution.sh is missing" in capsys.readouterr().err
