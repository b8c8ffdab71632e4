"""A ledger that knows every task's right answer: the policy of the workers' tests."""

import threading
import time

from ale_jax.agent.api import Reply
from ale_jax.agent.tools import render_tool_call
from ale_jax.records import Trajectory
from ale_jax.rollout.engine import EngineStopped
from ale_jax.rollout.ledger import AgentClock
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
        self._agents: dict[str, AgentClock] = {}
        self._stopped: set[str] = set()
        self._lock = threading.Lock()

    def open(self, name, key, sampling, prefix_turns, redraw):
        calls = generate(key.task.family, key.task.seed).oracle
        self.opened.append(name)
        self.redraws.append(redraw)
        self._scripts[name] = [render_tool_call(call) for call in calls][len(prefix_turns) :]
        self._agents[name] = AgentClock(time.monotonic())

    def reply(self, name, new_messages):
        script = self._scripts[name]
        with self._lock:
            self.asked += 1
        self._agents[name].ask(time.monotonic())
        assert self.gate.wait(60)
        if name in self._stopped:
            raise EngineStopped("the conversation was ended")
        self._agents[name].answer(time.monotonic())
        return Reply(script.pop(0), "stop")

    def activity(self, name):
        return self._agents[name].read(time.monotonic())

    def stop(self, name):
        self._stopped.add(name)

    def start_version(self, name):
        return 0 if self.asked else None

    def close(self, name, episode):
        del self._scripts[name]
        return episode and Trajectory(episode, turns=(), start_version=0)

    @property
    def open_conversations(self):
        return len(self._scripts)
