"""RolloutRequests played in a real sandbox by a policy that knows its lines: no engine, no Ray."""

from __future__ import annotations

import dataclasses

from ale_jax.agent.api import Reply
from ale_jax.agent.loop import ScriptedPolicy
from ale_jax.agent.tools import render_tool_call
from ale_jax.config.agent import AgentLimits
from ale_jax.data.replay import Group
from ale_jax.envs.shell.families import generate
from ale_jax.records import Trajectory
from ale_jax.rollout.play import EpisodeRunner
from tests.data.make_trajectories import make_turn
from tests.played_worlds import OurWorlds


class WritingPolicy(ScriptedPolicy):
    """Keeps what it read and wrote as turns."""

    def __init__(self, replies, version):
        super().__init__(replies)
        self.turns, self._version = [], version

    def reply(self, new_messages) -> Reply:
        reply = super().reply(new_messages)
        turn = make_turn([7], list(reply.text.encode()), version=self._version)
        texts = {"prompt_text": new_messages[-1].content, "action_text": reply.text}
        self.turns.append(dataclasses.replace(turn, **texts))
        return reply


class Rollouts:
    """script: the replies to a task, from its beginning; by default the oracle's."""

    def __init__(self, start_sandbox, worlds=None, memory=None):
        worlds = worlds or OurWorlds()
        self._runner = EpisodeRunner(
            lambda spec: start_sandbox(), worlds, AgentLimits(turns=12), memory
        )

    def play(self, request, script=None, version=0) -> Trajectory:
        replies = oracle_script(request.key.task) if script is None else script
        policy = WritingPolicy(replies[request.key.num_prefix_turns :], version)
        episode = self._runner.play(request.key, policy, request.prefix).episode
        if not policy.turns:
            return Trajectory(episode, (), version)
        turns = (*request.prefix_turns, *policy.turns)
        return Trajectory(episode, turns, version, num_prefix_turns=len(request.prefix_turns))

    def replay(self, requests) -> list[Trajectory]:
        return [self.play(each, script=[]) for each in requests]

    def group(self, index, requests, script=None, version=0) -> Group:
        return Group(index, tuple(self.play(each, script, version) for each in requests))

    def close(self):
        self._runner.close()


def oracle_script(task) -> list[str]:
    return [render_tool_call(call) for call in generate(task.family, task.item).oracle]
