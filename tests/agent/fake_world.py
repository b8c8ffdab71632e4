"""A world that says what was done in it, and fails where it is told to."""

from ale_jax.agent import loop
from ale_jax.worlds.api import Step, World
from ale_jax.worlds.checked import CheckedWorld
from ale_jax.worlds.items import Item


class FakeWorld(World):
    """Ends with reward 1 on "end", calls "bad" malformed, echoes the rest; fails where told to."""

    system_prompt = "be brief"
    role = "tool"

    def __init__(self, fail_in="", error=None, grade=0.5):
        self._fail_in, self._error, self._grade = fail_in, error, grade
        self.actions = []

    def _maybe_fail(self, where):
        if where == self._fail_in:
            raise self._error

    def reset(self, item, sandbox):
        self._maybe_fail("reset")
        return f"do {item.seed}"

    def step(self, reply):
        self._maybe_fail("step")
        self.actions.append(reply)
        done = reply == "end"
        return Step(f"saw {reply}", float(done), done, malformed=reply == "bad")

    def grade(self, answer=None):
        self._maybe_fail("grade")
        return self._grade


def play(world, policy, key, limits, prefix=None, memory=None):
    task = key.task
    checked = CheckedWorld(world, Item(task.family, task.item, task.split), None)
    return loop.play(checked, policy, key, limits, prefix, memory)
