"""What a policy meets in a task, and what it cannot do to its verdict."""

import io
import tarfile

import docker
import pytest

from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.egress.policy import EgressPolicy
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.worlds.api import Message, NoVerdictError, VerifierError
from ale_jax.worlds.bridges.harbor.world import NEXT
from tests.runtimes import picked
from tests.worlds.bridges.harbor.folders import (
    APART,
    GIVES,
    HEALTHY,
    HOSTS,
    LEAVES_ARTIFACTS,
    OF_STEPS,
    SEES_ARTIFACTS_ALONE,
    STEPS,
    STEPS_APART,
    TOML,
)
from tests.worlds.bridges.harbor.playing import FINISH, begun, played, run, world_of

SOLVE = run("echo 42 > answer")
OPEN = EgressPolicy("open")
IN_STEPS = {"task.toml": TOML + STEPS, **OF_STEPS}
IN_SEPARATE = {
    "task.toml": TOML + APART,
    **GIVES,
    "tests/test.sh": SEES_ARTIFACTS_ALONE,
}


def test_a_policy_begins_in_the_working_directory_and_sees_no_tests(runtime, tmp_path):
    with begun(runtime, tmp_path, {}) as (world, _):
        seen = world.step(run("pwd; id -un; ls -A . /tests /logs/verifier /solution"))
        wanted = "/app\nroot\n.:\n\n/logs/verifier:\n\n/solution:\n\n/tests:"
        assert (seen.observation, seen.failed, seen.done) == (wanted, False, False)
        assert world.step("hello").malformed
        assert played(world, SOLVE, FINISH).reward == 1.0


def test_an_episode_leaves_nothing_for_the_next(runtime, tmp_path):
    world, item = world_of(tmp_path, GIVES)
    with runtime.start(world.sandbox(item, SandboxSpec()), {"role": "test"}) as box:
        world.reset(item, box)
        played(world, run("rm given; touch /tests/x /tmp/x /logs/artifacts/x"), SOLVE, FINISH)
        world.reset(item, box)
        seen = world.step(run("find /app /tests /tmp /logs -type f")).observation
        assert seen == "/app/given"


FORGED = """
(while :; do echo 1 > /logs/verifier/reward.txt; done) & disown
mkdir -p /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh
for d in /usr/local/bin /app .; do printf '#!/bin/sh\\necho 42' > $d/cat; done; chmod +x cat
echo 'cat() { echo 42; }; export -f cat' > ~/.bashrc; export BASH_ENV=~/.bashrc PATH=.:$PATH
"""


def test_a_reward_is_not_written_by_the_policy(runtime, tmp_path):
    with begun(runtime, tmp_path, {}) as (world, _):
        assert played(world, run(FORGED), FINISH).reward == 0.0


def test_a_verdict_that_never_comes_is_the_policys_fault_or_the_tasks(runtime, tmp_path):
    kills = {"tests/test.sh": "[ -e bad ] && kill -9 $PPID $$\necho 0 > /logs/verifier/reward.txt"}
    with begun(runtime, tmp_path, kills) as (world, _):
        with pytest.raises(NoVerdictError, match="task one: no report"):
            played(world, run("touch bad"), FINISH)
    with begun(runtime, tmp_path / "more", {"tests/test.sh": "true"}) as (world, _):
        with pytest.raises(VerifierError, match=r"task one: no report.*none of the untouched"):
            world.step(FINISH)


def test_the_end_of_its_time_ends_a_step(runtime, tmp_path):
    short = {"task.toml": f"{TOML}[agent]\ntimeout_sec = 1.5\n"}
    with begun(runtime, tmp_path, short) as (world, _):
        assert not world.step(SOLVE).done
        step = world.step(run("sleep 60"))
        assert (step.done, step.reward) == (True, 1.0)


def test_one_command_may_have_a_limit_of_its_own(runtime, tmp_path):
    changes = {"task.toml": f"{TOML}[agent]\ntimeout_sec = 3\n"}
    with begun(runtime, tmp_path, changes, command_seconds=0.5) as (world, _):
        step = world.step(run("sleep 60"))
        assert (step.observation, step.done) == ("(no output)\n[timed out]", False)


def test_rewards_by_name_count_alone_or_are_told(runtime, tmp_path):
    names = '#!/bin/bash\necho \'{"reward": 0.5, "lines": 3}\' > /logs/verifier/reward.json'
    with begun(runtime, tmp_path, {"tests/test.sh": names}) as (world, _):
        assert world.step(FINISH).reward == 0.5
        assert world.metrics() == {"lines": 3.0}


def test_steps_follow_each_other_until_one_falls_short(runtime, tmp_path):
    with begun(runtime, tmp_path, IN_STEPS) as (world, _):
        second = played(world, run("echo 1 > answer"), FINISH)
        told = "Write what number.txt holds."
        assert second.observation == [Message("tool", NEXT), Message("user", told)]
        assert not second.done and second.reward == 0.0
        seen = world.step(run("pwd; ls -A; ls /tests")).observation
        assert seen == "/app\nanswer\nnumber.txt\nset-up"
        assert played(world, FINISH).reward == 0.5
    changes = IN_STEPS | {"steps/two/workdir/setup.sh": "touch set-up"}
    with begun(runtime, tmp_path / "again", changes) as (world, _):
        short = world.step(FINISH)
        assert (short.done, short.reward) == (True, 0.0)


def test_a_step_that_cannot_begin_ends_the_task(runtime, tmp_path):
    """Its setup.sh looks for what the first step has left."""
    changes = IN_STEPS | {"steps/two/workdir/setup.sh": "exit 3"}
    with begun(runtime, tmp_path, changes) as (world, _):
        step = played(world, run("echo 1 > answer"), FINISH)
        assert (step.done, step.reward) == (True, 1.0)


def test_a_limit_judges_the_current_step_and_a_program_plays_one_alone(runtime, tmp_path):
    with begun(runtime, tmp_path, IN_STEPS) as (world, _):
        played(world, run("echo 1 > answer"), FINISH)
        assert world.grade() == 0.5
    with begun(runtime, tmp_path / "again", IN_STEPS) as (world, _):
        with pytest.raises(ValueError, match="task one: steps: a program plays tasks of one"):
            world.grade("done")
    with begun(runtime, tmp_path / "alone", {}) as (world, _):
        world.step(SOLVE)
        assert world.grade("done") == 1.0


def test_a_separate_verifier_sees_artifacts_alone(runtime, tmp_path):
    hostile = """ln -s /etc/passwd out/yes2; mkfifo out/pipe; ln -s / out/root
        (while :; do touch secret /logs/artifacts/more; sleep 0.01; done) & disown"""
    with begun(runtime, tmp_path, IN_SEPARATE) as (world, box):
        assert played(world, run(LEAVES_ARTIFACTS), run(hostile), FINISH).reward == 1.0
        left = box.exec("cd /app; find . -type f; ls out").stdout.split()
        assert sorted(left) == ["./answer", "./given", "./out/yes", "yes"]


OF_ITS_OWN = {
    "task.toml": f"{TOML}artifacts = ['answer']\n[verifier.environment]\n"
    "docker_image = 'ale-test-verifier'\nworkdir = '/app'\n[[steps]]\nname = 'one'\n"
    "[[steps]]\nname = 'two'\n[steps.verifier]\nenvironment_mode = 'shared'\n"
    "env = {WANTED = '2'}\n",
    **OF_STEPS,
}
RECIPE = "FROM ale-shell\nCOPY test.sh /tests/\nCOPY test.sh /opt/verifiers\n"
JUDGES_ALONE = """#!/bin/bash
[ -e /opt/verifiers ] && [ -e /app/answer ] && [ ! -e /app/secret ] && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
"""


@pytest.fixture(scope="module")
def own_image():
    """An image of the shell tasks that a verifier needs, with its tests and a mark."""
    picked("docker", SandboxSpec())
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        for path, text in (("Dockerfile", RECIPE), ("test.sh", JUDGES_ALONE)):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(text), 0o755
            archive.addfile(entry, io.BytesIO(text.encode()))
    context.seek(0)
    api = docker.from_env().api
    told = list(api.build(fileobj=context, custom_context=True, tag="ale-test-verifier", rm=True))
    assert b"Successfully tagged" in told[-1], told
    yield
    api.remove_image("ale-test-verifier")


@pytest.mark.slow
@pytest.mark.heavy
def test_a_verifier_has_an_image_and_tests_of_its_own(own_image, tmp_path):
    with begun(picked("docker", SandboxSpec()), tmp_path, OF_ITS_OWN) as (world, _):
        looks = "touch secret; ls /opt /tests"
        assert world.step(run(looks)).observation == "/opt:\n\n/tests:"
        second = played(world, run("echo 1 > answer"), FINISH)
        assert not second.done
        left = "ls secret answer /opt; cat number.txt"
        assert world.step(run(left)).observation == "answer\nsecret\n\n/opt:\n2"
        assert played(world, run("echo 2 > answer"), FINISH).reward == 1.0


def test_a_verifiers_image_that_is_not_there_is_missed_before_anything_is_played(runtime, tmp_path):
    changes = {"task.toml": f"{TOML}[verifier.environment]\ndocker_image = 'ale-nowhere'\n"}
    words = r"task one: verifier.environment.docker_image 'ale-nowhere': .*ale-nowhere"
    with pytest.raises(SandboxStartError, match=words), begun(runtime, tmp_path, changes):
        pass


def test_what_is_no_artifact_is_there_in_the_next_step(runtime, tmp_path):
    changes = {"task.toml": TOML + STEPS_APART, **OF_STEPS}
    with begun(runtime, tmp_path, changes) as (world, box):
        before = box.network
        second = played(world, run("echo 1 > answer; echo kept > note"), FINISH)
        assert not second.done and box.network == before
        assert world.step(run("cat note number.txt")).observation == "kept\n2"


def test_artifacts_that_do_not_fit_are_the_policys_fault(runtime, tmp_path):
    with begun(runtime, tmp_path, IN_SEPARATE, files_mb=2) as (world, _):
        with pytest.raises(NoVerdictError, match=r"artifact /app/out"):
            played(world, run("mkdir out; head -c 2090000 /dev/zero > out/yes"), FINISH)


def test_a_sick_environment_is_nobodys_failure(runtime, tmp_path):
    sick = {"task.toml": TOML + HEALTHY.replace("-ge 3", "-ge 9")}
    with pytest.raises(SandboxStartError, match=r"task one: environment.healthcheck failed 5 time"):
        with begun(runtime, tmp_path, sick):
            pass


def test_each_phase_has_its_own_network(runtime, tmp_path):
    world, item = world_of(tmp_path, {"task.toml": TOML + HOSTS})
    allowed = EgressPolicy("allowlist", ("pypi.org", "*.example.org"))
    spec = world.sandbox(item, SandboxSpec(network=OPEN))
    with runtime.start(spec, {"role": "test"}) as box:
        world.reset(item, box)
        assert box.network == allowed
        assert played(world, SOLVE, FINISH).reward == 1.0
        assert box.network == allowed


def test_what_the_run_does_not_allow_is_refused(tmp_path):
    world, item = world_of(tmp_path, {"task.toml": TOML + HOSTS})
    with pytest.raises(ValueError, match=r"task one: agent.allowed_hosts: .* 'pypi.org', as"):
        world.sandbox(item, SandboxSpec())
    widest = world.sandbox(item, SandboxSpec(network=OPEN)).network
    assert widest.allow == ("pypi.org", "*.example.org", "8.8.4.4")


def test_a_sandbox_is_as_the_task_asks(tmp_path):
    asks = "[environment]\ncpus = 2\nmemory_mb = 300\nstorage_mb = 20\nenv = {A = '1'}\n"
    world, item = world_of(
        tmp_path, {"task.toml": TOML + asks, **GIVES}, files_mb=40, writable=("/data",)
    )
    run_spec = SandboxSpec(image="other", runtime="runsc")
    spec = world.sandbox(item, run_spec)
    assert (spec.image, spec.runtime, spec.user, spec.cpus) == ("other", "runsc", "root", 2.0)
    directories = ("/app", "/data", "/logs/artifacts", "/logs/verifier", "/solution", "/tests")
    assert spec.writable == directories and spec.env == (("A", "1"),)
    assert (spec.files_mb, spec.memory_mb) == (20, 300 + 20 * 9)


def test_a_dockerfile_that_installs_is_built_by_the_user_or_passed_over(tmp_path):
    changes = {"environment/Dockerfile": "FROM x\nRUN make\nWORKDIR /app\n"}
    world, item = world_of(tmp_path / "Built", changes, images="host:5000/set/{task}")
    assert world.sandbox(item, SandboxSpec()).image == "host:5000/set/one"
    world, item = world_of(tmp_path / "run's", changes, installed=True)
    assert world.sandbox(item, SandboxSpec()).image == SandboxSpec().image


def test_a_task_without_a_solution_has_no_oracle(tmp_path):
    world, item = world_of(tmp_path, {"solution/solve.sh": None})
    assert world.oracle(item) is None
