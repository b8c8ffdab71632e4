"""Hooks see each call, and can refuse it or say something about it."""

import dataclasses
import json

import pytest

from ale_jax.agent.assistant.events import CallEnded
from ale_jax.agent.assistant.settings import Hook, Limits
from tests.agent.assistant.scripted import AUTO, call, endpoint_that, in_turn, play

pytestmark = pytest.mark.heavy


def outputs(folder, hooks, *calls, limits=AUTO.limits):
    settings = dataclasses.replace(AUTO, hooks=hooks, limits=limits)
    with endpoint_that(in_turn(*calls, "Done.")) as endpoint:
        return play(endpoint, folder, "Go.", settings=settings).of(CallEnded)


def test_a_hook_that_fails_refuses_the_call_and_says_why(folder):
    refuse = Hook("before", ("sh", "-c", "cat > asked; echo not today >&2; exit 1"), "wri*")
    wrote, ran = outputs(
        folder, (refuse,), call("write", path="a", content="x"), call("bash", command="ls")
    )
    assert wrote.refused and wrote.output == "refused: not today" and not (folder / "a").exists()
    assert not ran.is_error
    asked = json.loads((folder / "asked").read_text())
    assert (asked["tool"], asked["arguments"]) == ("write", {"path": "a", "content": "x"})


def test_a_hook_that_does_not_end_refuses(folder):
    hook = Hook("before", ("sleep", "1000"))
    (ended,) = outputs(
        folder, (hook,), call("write", path="a", content=""), limits=Limits(hook_seconds=0.2)
    )
    assert ended.refused and "did not end" in ended.output and not (folder / "a").exists()


def test_what_a_hook_says_after_a_call_is_read_by_the_model(folder):
    check = Hook("after", ("sh", "-c", "cat > seen; echo badly formatted >&2; exit 1"), "bash")
    (ended,) = outputs(folder, (check,), call("bash", command="echo hi"))
    assert ended.output == "hi\n[badly formatted]"
    assert json.loads((folder / "seen").read_text())["output"] == "hi"


def test_hooks_that_succeed_change_nothing(folder):
    hooks = (Hook("before", ("true",)), Hook("after", ("true",)))
    (ended,) = outputs(folder, hooks, call("bash", command="echo hi"))
    assert ended.output == "hi"
