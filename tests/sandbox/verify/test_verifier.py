"""Verdicts, and all the ways in which there is none: an error of its own, never a reward of 0."""

import threading

import pytest

from ale_jax.sandbox.api import SandboxError, SandboxLost
from ale_jax.sandbox.egress.policy import EgressPolicy
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.sandbox.verify.verifier import (
    MAX_BYTES,
    Evidence,
    Verifier,
    VerifierFailed,
    VerifierTimedOut,
    trusted_path,
    verify,
)
from tests.rows import each_row
from tests.sandbox.conftest import processes
from tests.sandbox.verify.conftest import SPEC, bash_verifier, reward


@pytest.mark.heavy
@pytest.mark.each_runtime
def test_the_reward_is_what_the_tests_find(box):
    assert reward(box) == 0.0
    box.run("echo 42 > /app/answer")
    assert reward(box) == 1.0


@pytest.mark.parametrize(("code", "earned"), [(0, 1.0), (1, 0.0), (2, 0.0), (125, 0.0)])
def test_reward_of_an_exit_code(box, code, earned):
    assert reward(box, bash_verifier(b"exit %d" % code, Evidence.EXIT_CODE)) == earned


@pytest.mark.parametrize("script", [b"exit 126", b"exit 127", b"kill -9 $$", b"kill -15 $$"])
def test_an_exit_code_that_is_not_the_tests_own_is_no_verdict(box, script):
    with pytest.raises(VerifierFailed, match="is not a verdict"):
        reward(box, bash_verifier(script, Evidence.EXIT_CODE))


@pytest.mark.parametrize("evidence", Evidence)
def test_a_command_that_is_not_there_is_no_verdict(box, evidence):
    with pytest.raises(VerifierFailed, match="No such file"):
        verify(box, Verifier({}, ["no-such-program"], evidence))


@pytest.mark.parametrize(
    ("script", "rewards"),
    [
        (b"echo 0.5 > $REPORT/reward.txt", {"reward": 0.5}),
        (b'echo \'{"speed": 2, "reward": 1}\' > $REPORT/reward.json', {"speed": 2, "reward": 1}),
        (
            b"echo '{\"reward\": 0}' > $REPORT/reward.json; echo 1 > $REPORT/reward.txt",
            {"reward": 0},
        ),
        (b"echo 1 > $REPORT/reward.txt; exit 3", {"reward": 1.0}),
    ],
)
def test_rewards_of_a_report(box, script, rewards):
    assert verify(box, bash_verifier(script)).rewards == rewards


def test_which_reward_counts(box):
    one = verify(box, bash_verifier(b"echo '{\"speed\": 0.5}' > $REPORT/reward.json"))
    assert one.reward == 0.5
    several = verify(box, bash_verifier(b'echo \'{"a": 1, "b": 0}\' > $REPORT/reward.json'))
    with pytest.raises(VerifierFailed, match="none of the rewards a, b is named"):
        several.reward  # noqa: B018


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        (b"true", "no report: the tests ended with exit code 0"),
        (b"echo PASSED; echo all 9 passed; exit 0", "no report"),
        (b"> $REPORT/reward.txt", "reward.txt is empty"),
        (b"echo nan > $REPORT/reward.txt", "must contain one number"),
        (b"echo '{}' > $REPORT/reward.json; echo 1 > $REPORT/reward.txt", "reward.json contains"),
        (b"head -c 70000 /dev/zero > $REPORT/reward.txt", f"more than {MAX_BYTES} bytes"),
        (b"echo 1 > $HOME/r; ln -s $HOME/r $REPORT/reward.txt", "no report"),
        (b"mkfifo $REPORT/reward.txt", "no report"),
        (b"mkdir $REPORT/reward.txt", "no report"),
        (b"ln -s /dev/zero $REPORT/reward.txt", "no report"),
        (b"echo 1 > $REPORT/reward.txt; rm -rf $REPORT; ln -s /app $REPORT", "no report"),
    ],
)
def test_a_report_that_is_none_is_no_verdict(box, script, fault):
    with pytest.raises(VerifierFailed, match=fault):
        verify(box, bash_verifier(script))


@pytest.mark.parametrize(
    ("number", "code", "earned"),
    [(b"1", b"0", 1.0), (b"0", b"1", 0.0), (b"0.5", b"1", 0.5), (b"0", b"7", 0.0)],
)
def test_report_and_exit_code_that_agree(box, number, code, earned):
    script = b"echo '{\"reward\": %s}'; exit %s" % (number, code)
    assert reward(box, bash_verifier(script, Evidence.STDOUT)) == earned


@pytest.mark.parametrize(("number", "code"), [(b"1", b"1"), (b"0", b"0"), (b"1", b"137")])
def test_report_and_exit_code_that_do_not_agree_are_no_verdict(box, number, code):
    script = b"echo '{\"reward\": %s}'; exit %s" % (number, code)
    with pytest.raises(VerifierFailed, match="the exit code is"):
        verify(box, bash_verifier(script, Evidence.STDOUT))


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        (b"echo 1 > $REPORT/reward.txt", "no report: exit code 0"),
        (b"echo 1", "stdout contains 1"),
        (b"echo '{\"reward\": 1'", "stdout"),
        (b"echo PASSED; echo '{\"reward\": 1}'", "stdout"),
        (b"yes '{\"reward\": 1}' | head -c 100000", "stdout"),
    ],
)
def test_anything_but_a_report_on_stdout_is_no_verdict(box, script, fault):
    with pytest.raises(VerifierFailed, match=fault):
        verify(box, bash_verifier(script, Evidence.STDOUT))


@pytest.mark.parametrize("evidence", Evidence)
def test_tests_without_end_are_no_verdict(box, evidence):
    script = b"echo 1 > $REPORT/reward.txt; echo so far; sleep 60"
    with pytest.raises(VerifierTimedOut, match=r"within 0\.3 s; last output: 'so far'"):
        verify(box, bash_verifier(script, evidence, seconds=0.3))


def test_no_verdict_is_trouble_of_the_infrastructure():
    assert issubclass(VerifierFailed, SandboxError)
    assert issubclass(VerifierTimedOut, VerifierFailed)


@pytest.mark.heavy
@pytest.mark.each_runtime
def test_a_lost_sandbox_is_no_verdict(runtime):
    with runtime.start(SPEC, {"run": "tests"}) as sandbox:
        pass
    with pytest.raises(SandboxLost):
        verify(sandbox, bash_verifier())


@pytest.mark.heavy
@pytest.mark.each_runtime
def test_a_sandbox_that_is_lost_under_the_tests_is_no_verdict(runtime):
    with runtime.start(SPEC, {"run": "tests"}) as sandbox:
        threading.Timer(0.5, sandbox.close).start()
        with pytest.raises(SandboxLost):
            verify(sandbox, bash_verifier(b"sleep 60"))


@pytest.mark.each_runtime
def test_tests_that_do_not_fit_are_no_verdict(box):
    with pytest.raises(VerifierFailed, match=r"'/tests' is not ready .* No space left"):
        verify(box, Verifier({"big": bytes(9 << 20)}, ["true"]))


@pytest.mark.each_runtime
def test_a_place_that_is_not_writable_is_no_verdict(box):
    with pytest.raises(VerifierFailed, match=r"'/opt/tests' is not ready .* Read-only"):
        verify(box, Verifier({}, ["true"], tests="/opt/tests"))


@pytest.mark.each_runtime
def test_the_sandbox_lives_on_without_a_trace_of_the_verifier(box):
    box.run("cd /app; echo 42 > answer; export SEEN=1; sleep 1000 &")
    script = b"mkdir -p $HOME/deep; touch $REPORT/x $HOME/deep/y /tests/z; sleep 1234 &"
    assert reward(box, bash_verifier(script, Evidence.EXIT_CODE)) == 1.0
    assert "sleep" not in processes(box)
    assert box.run("cat /app/answer").output == "42\n"
    assert box.run("find /tests /logs/verifier -mindepth 1").output == ""
    assert box.run("echo $SEEN; pwd").output == "\n/work\n"


def test_nothing_is_left_where_there_was_no_verdict_either(box):
    with pytest.raises(VerifierFailed):
        verify(box, bash_verifier(b"touch $REPORT/x"))
    assert box.run("find /tests /logs/verifier -mindepth 1").output == ""


def test_files_come_with_their_folders_and_nothing_else_is_there(box):
    files = {"a/b/c.txt": b"deep", "d": b"\xff"}
    shown = verify(box, Verifier(files, "find . -type f; cat a/b/c.txt")).output.stdout
    assert sorted(shown.split()) == ["./a/b/c.txt", "./d", "deep"] or "deep" in shown


@each_row("path", ["../x", "/etc/x", "a/../x", "", "a//b", "x\0"])
def test_a_test_that_would_lie_elsewhere_is_refused(box, path):
    with pytest.raises(ValueError, match="must be relative to /tests"):
        verify(box, Verifier({path: b""}, ["true"]))


@each_row("directory", ["/app/../tests", "/tests/", "//tests", "/tests/."])
def test_a_directory_that_is_not_plain_is_refused(box, directory):
    with pytest.raises(ValueError, match="must be absolute and below /"):
        verify(box, Verifier({}, ["true"], tests=directory))


@each_row(
    "fields, fault",
    [
        ({"seconds": 0}, "seconds 0 must be more than 0"),
        ({"seconds": float("nan")}, "seconds nan"),
        ({"command": ""}, "command '' must name what to run"),
        ({"tests": "/logs"}, "must not be nested"),
        ({"report": "/tests/report"}, "must not be nested"),
        ({"report": "/tests"}, "must not be nested"),
    ],
)
def test_a_verifier_that_cannot_be_meant_is_refused(fields, fault):
    with pytest.raises(ValueError, match=fault):
        Verifier(**{"files": {}, "command": ["true"]} | fields)


def test_a_path_leads_to_nothing_that_the_agent_could_write():
    every = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert trusted_path(("/app", "/usr2", "/var/lib")) == every
    assert trusted_path(("/app", "/usr/local/bin")) == every.replace("/usr/local/bin:", "")


@each_row(
    "part",
    ["/usr/bin", "/usr/local/lib", "/usr/local", "/etc", "/etc/profile.d", "/lib64", "/libx32/a"],
)
def test_where_the_agent_may_write_into_the_system_nothing_is_verified(part):
    with pytest.raises(ValueError, match=f"the agent may write to '{part}': leave it out"):
        trusted_path(("/app", part))


ASK = b"""
exec 3<> /dev/tcp/127.0.0.1/3128
printf 'CONNECT a.invalid:443 HTTP/1.1\\r\\nHost: a.invalid:443\\r\\n\\r\\n' >&3
cat <&3
"""


@pytest.mark.heavy
@pytest.mark.each_runtime
def test_the_tests_may_have_another_network_than_the_agent(runtime):
    agents = EgressPolicy("allowlist", ("b.invalid:443",))
    spec = SandboxSpec(network=agents, writable=("/tests", "/logs/verifier"))
    with runtime.start(spec, {"run": "tests"}) as sandbox:
        seen = {}
        for policy in (None, EgressPolicy()):
            verifier = bash_verifier(ASK, Evidence.EXIT_CODE, network=policy)
            seen[policy] = verify(sandbox, verifier).output.stdout
            assert sandbox.network == agents
        assert "allowlist" in seen[None] and "allowlist" not in seen[EgressPolicy()]
        assert "403" in seen[None] and "403" in seen[EgressPolicy()]
        with pytest.raises(VerifierFailed):
            verify(sandbox, bash_verifier(b"true", network=EgressPolicy()))
        assert sandbox.network == agents


def test_a_sandbox_without_a_network_gets_none_for_its_tests(box):
    assert reward(box, bash_verifier(network=EgressPolicy())) == 0.0
    with pytest.raises(ValueError, match=r"start it with spec\.network"):
        verify(box, bash_verifier(network=EgressPolicy("open")))
