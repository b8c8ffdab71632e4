"""A missing verdict is the agent's failure if the untouched task has one, and else trouble."""

import dataclasses

import pytest

from ale_jax.sandbox.verify.verifier import Evidence, Judgement, Verifier, VerifierFailed, judge
from tests.sandbox.verify.conftest import bash_verifier

SECONDS = 1.0
# What the agent's program does while the tests wait for it.
WORK = {
    "never ends": "while :; do :; done",
    "kills its parent": "kill -9 $PPID",
    "prints another report": "echo '{\"reward\": 1}'",
}

# More attributes of /work than the kernel can list, so that nobody can remove them.
UNLISTED = """
import os
for number in range(300):
    os.setxattr("/work", f"user.{number:0>240}", b"")
"""


def untouched(box):
    """Brings the box into the initial state of a task whose tests run /app/work.sh."""

    def restore() -> None:
        box.reset()
        box.replace_directory("/app", {})

    return restore


def leave(box, work: str) -> None:
    untouched(box)()
    box.replace_directory("/app", {"work.sh": work.encode()})


def program_verifier() -> Verifier:
    script = (
        b'bash /app/work.sh && code=0 || code=1; echo "{\\"reward\\": $((1 - code))}"; exit $code'
    )
    return bash_verifier(script, Evidence.STDOUT, seconds=SECONDS)


@pytest.mark.heavy
@pytest.mark.parametrize("work", ["true", "false"])
def test_where_there_is_a_verdict_there_is_no_control(box, work):
    leave(box, work)
    earned = judge(box, program_verifier(), restore=lambda: pytest.fail("a control was run"))
    assert earned == Judgement({"reward": float(work == "true")})


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_work_that_keeps_its_tests_from_a_verdict_has_failed(box, work):
    leave(box, work)
    earned = judge(box, program_verifier(), untouched(box))
    assert earned.reward == 0.0 and earned.no_verdict


@pytest.mark.parametrize("script", [b"sleep 60", b"kill -9 $$", b"true"])
def test_tests_that_never_have_a_verdict_are_trouble_and_no_failure(box, script):
    verifier = bash_verifier(script, Evidence.STDOUT, seconds=0.5)
    with pytest.raises(VerifierFailed, match=r"\(and none of the untouched task: no "):
        judge(box, verifier, untouched(box))


def test_the_control_sees_nothing_of_the_agents(box):
    """A control that hangs on what the agent left behind would excuse it."""
    leave(box, "sleep 60")
    box.run("touch /app/more /tmp/more; sleep 999 &")
    verifier = program_verifier()
    script = b"ls /app/more /tmp/more > /dev/null 2>&1 && sleep 60\n" + verifier.files["test.sh"]
    seen = dataclasses.replace(verifier, files={"test.sh": script})
    assert judge(box, seen, untouched(box)).no_verdict


@pytest.mark.heavy
@pytest.mark.each_runtime
def test_the_control_needs_no_reset_of_what_the_agent_has_used(box):
    """A reset that fails would be nobody's fault, and the verdict with it."""
    leave(box, "sleep 60")
    spoilt = box.exec(["python3", "-c", UNLISTED])
    assert spoilt.exit_code == 0, spoilt
    assert judge(box, program_verifier(), untouched(box)).no_verdict


def test_a_report_that_has_no_reward_is_no_verdict(box):
    leave(box, "true")
    script = b'[ -e /app/work.sh ] && r=\'{"a": 1, "b": 1}\' || r=\'{"reward": 0}\'; echo $r'
    verifier = bash_verifier(script + b" > $REPORT/reward.json", seconds=SECONDS)
    assert "none of the rewards a, b" in judge(box, verifier, untouched(box)).no_verdict


def test_each_missing_verdict_has_a_control_of_its_own(box):
    """A host that was well once may be in trouble now."""
    controls = []
    for _ in range(2):
        leave(box, "kill -9 $PPID")
        judge(box, program_verifier(), lambda: controls.append(untouched(box)()))
    assert len(controls) == 2
