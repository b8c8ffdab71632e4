"""A ledger that knows every task's right answer: the policy of the workers' tests."""

import threading

from ale_jax.agent.api import Reply
from ale_jax.agent.tools import render_tool_call
from ale_jax.records import Trajectory
from envs.shell.families import generate


class OracleLedger:
    """Replies what the oracle of the conversation's task does; `gate` holds replies back."""

    def __init__(self):
        self.gate = threading.Event()
        self.gate.set()
        self.asked = 0
        self.opened: list[str] = []
        self.redraws: list[int] = []
        self._scripts: dict[str, list[str]] = {}
        self._lock = threading.Lock()

    def open(self, name, key, sampling, prefix_turns, redraw):
        calls = generate(key.task.family, key.task.seed).oracle
        self.opened.append(name)
        self.redraws.append(redraw)
        self._scripts[name] = [render_tool_call(call) for call in calls][len(prefix_turns) :]

    def reply(self, name, new_messages):
        script = self._scripts[name]
        with self._lock:
            self.asked += 1
        assert self.gate.wait(60)
        return Reply(script.pop(0), "stop")

    def start_version(self, name):
        return 0 if self.asked else None

    def close(self, name, episode):
        del self._scripts[name]
        return episode and Trajectory(episode, turns=(), start_version=0)

    @property
    def open_conversations(self):
        return len(self._scripts)
