"""A ledger that knows every task's right answer: the policy of the workers' tests."""

import threading
import time
from concurrent.futures import Future

import numpy as np

from ale_jax.agent.api import Reply
from ale_jax.agent.tools import render_tool_call
from ale_jax.engine.request import EngineStopped
from ale_jax.envs.shell.families import generate
from ale_jax.gateway.custody.ledger import AgentClock
from ale_jax.gateway.custody.token_tree import TokenTree
from ale_jax.gateway.episode import EpisodeOptions, GatewayEpisode
from ale_jax.gateway.episodes import Episodes
from ale_jax.gateway.formats.json_calls import PlainJson
from ale_jax.gateway.language import Language
from ale_jax.records import Trajectory
from tests.gateway.fake_policy import Written
from tests.gateway.speech import read, render, sample


class OracleLedger:
    """Replies what the oracle of the conversation's task does; `gate` holds replies back."""

    def __init__(self):
        self.episodes = Episodes()
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
        calls = generate(key.task.family, key.task.item).oracle
        self.opened.append(name)
        self.redraws.append(redraw)
        self._scripts[name] = [render_tool_call(call) for call in calls][len(prefix_turns) :]
        self._agents[name] = AgentClock(time.monotonic())
        language = Language(PlainJson(), lambda ids: read([4, *ids])[0][1])
        options = EpisodeOptions(on_turn=lambda waits: self._turn(name, waits))
        policy, keys = _Scripted(self, name), lambda number: np.zeros(2, np.uint32)
        episode = GatewayEpisode(TokenTree(render), policy, language, keys, options)
        self.episodes.open(episode, name)

    def _turn(self, name, waits):
        agent = self._agents[name]
        agent.ask(time.monotonic()) if waits else agent.answer(time.monotonic())

    def reply(self, name):
        script = self._scripts[name]
        with self._lock:
            self.asked += 1
        assert self.gate.wait(60)
        if name in self._stopped:
            raise EngineStopped("the conversation was ended")
        return Reply(script.pop(0), "stop")

    def activity(self, name):
        return self._agents[name].read(time.monotonic())

    def stop(self, name):
        self._stopped.add(name)

    def start_version(self, name):
        return 0 if self.asked else None

    def close(self, name, episode):
        del self._scripts[name]
        self.episodes.end(name, "all")
        return episode and Trajectory(episode, turns=(), start_version=0)

    @property
    def open_conversations(self):
        return len(self._scripts)


class _Scripted:
    """The engine that an episode of the gateway asks."""

    def __init__(self, ledger, name):
        self._ledger, self._name = ledger, name

    def open(self):
        return 0

    def reply(self, conversation, new_ids, options, key, stop_checker):
        future = Future()
        # A daemon, as a reply that is held back must not hold back the end of the process.
        threading.Thread(target=self._answer, args=(future,), daemon=True).start()
        return future

    def end(self, conversation):
        pass

    def _answer(self, future):
        try:
            reply = self._ledger.reply(self._name)
        except EngineStopped as error:
            future.set_exception(error)
        else:
            future.set_result(Written(sample(reply.text, 0), reply.stop))
