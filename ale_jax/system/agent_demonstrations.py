"""Demonstrations that an agent's own program plays: it starts in a sandbox as in training, and the
oracle answers it through the gateway. So the policy imitates in the very conversations that the
agent will have with it: with its prompt, its tools, and what it says of their results.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from ale_jax.agent import external
from ale_jax.agent.external import PolicyAccess
from ale_jax.agent.transcripts import Transcript
from ale_jax.config.agent import ExternalAgent
from ale_jax.engine.request import Sampled
from ale_jax.gateway.app import make_app
from ale_jax.gateway.conversations import StopChecker
from ale_jax.gateway.custody.calls import Call
from ale_jax.gateway.custody.engine_policy import ChatRender, for_template, language_of
from ale_jax.gateway.custody.token_tree import NO_VARIABLES, TokenTree
from ale_jax.gateway.episode import EpisodeOptions, GatewayEpisode
from ale_jax.gateway.episodes import Episodes
from ale_jax.gateway.messages import ChatMessage
from ale_jax.gateway.requests import SampleOptions
from ale_jax.gateway.server import served
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.recorded.conversation import with_calls
from ale_jax.records import EpisodeKey, Task
from ale_jax.sandbox.blocking import BlockingSandbox
from ale_jax.worlds.api import Message
from ale_jax.worlds.families import Families, Family


@contextlib.contextmanager
def played_by(
    agent: ExternalAgent, families: Families, tokenizer: ChatTokenizer
) -> Iterator[Callable[[BlockingSandbox, Task], Transcript]]:
    """Yields a function that lets the agent play a task to its end. It raises RuntimeError if the
    agent does not earn the reward, or not with the oracle's replies in one conversation.

    families: of the tasks. tokenizer: any whose chat template is the policy's, as its ids are not
    kept.
    """
    episodes = Episodes()
    with served(make_app(episodes, "oracle")) as url:

        def play(box: BlockingSandbox, task: Task) -> Transcript:
            demonstration = _Demonstration(families[task.family], task, tokenizer)
            return demonstration.play(box, agent, episodes, url)

        yield play


class Script:
    """A `gateway.conversations.Policy` whose replies are given, whatever it reads."""

    def __init__(self, replies: Sequence[np.ndarray]):
        self._left = iter(replies)

    def open(self) -> int:
        return 0

    def reply(
        self,
        conversation: int,
        new_ids: np.ndarray,
        options: SampleOptions,
        key: np.ndarray,
        stop_checker: StopChecker | None,
    ) -> Future[Sampled]:
        ids = next(self._left)
        zeros = np.zeros(len(ids), np.float32)
        future: Future[Sampled] = Future()
        future.set_result(Sampled(ids, zeros, zeros, zeros.astype(np.int32), "stop"))
        return future

    def end(self, conversation: int) -> None:
        """Does nothing, as there is nothing to free."""


class _NotingRender(ChatRender):
    """tools: those that the newest conversation offers."""

    tools: tuple[Mapping[str, Any], ...] = ()

    def __call__(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]],
        after: np.ndarray | None,
        reply: ChatMessage | None = None,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> np.ndarray:
        self.tools = tuple(tools)
        return super().__call__(messages, tools, after, reply, variables)


class _Demonstration:
    """An episode of the gateway in which the oracle of a task answers, and what it becomes."""

    def __init__(self, family: Family, task: Task, tokenizer: ChatTokenizer):
        self._family, self._task = family, task
        self._replies = family.oracle(task)
        self._render = _NotingRender(tokenizer)
        self._episode = GatewayEpisode(
            TokenTree(self._render),
            Script([self._reply_ids(tokenizer, text) for text in self._replies]),
            language_of(tokenizer),
            lambda number: np.zeros(2, np.uint32),
            EpisodeOptions(obeys=False, max_replies=len(self._replies)),
        )

    def _reply_ids(self, tokenizer: ChatTokenizer, text: str) -> np.ndarray:
        """A reply of the oracle as the family of a model that is given writes its calls."""
        if not self._family.in_template:
            return tokenizer.reply_ids(text)
        (told,) = with_calls([ChatMessage("assistant", text)])
        return tokenizer.turn_ids(for_template(told))

    def play(
        self, box: BlockingSandbox, agent: ExternalAgent, episodes: Episodes, url: str
    ) -> Transcript:
        token = episodes.open(self._episode)
        key = EpisodeKey(phase="oracle", group=self._task.number, member=0, task=self._task)
        world, access = self._family.checked(self._task, box), PolicyAccess(url, token)
        played = external.play(world, box, agent, access, key)
        branches = episodes.end(token, "all")
        if played.reward is None or not played.is_solved:
            raise RuntimeError(f"the agent, with the oracle of {self._task}, ended in {played}")
        if len(branches) != 1 or len(branches[0].calls) != len(self._replies):
            raise RuntimeError(
                f"the agent asked for {[len(b.calls) for b in branches]} replies in "
                f"{len(branches)} conversations, and the oracle of {self._task} has "
                f"{len(self._replies)} in one: switch off what begins other conversations"
            )
        return dataclasses.replace(self._transcript(branches[0].calls), reward=played.reward)

    def _transcript(self, calls: Sequence[Call]) -> Transcript:
        if any(each.role == "assistant" for call in calls for each in call.messages):
            raise RuntimeError(
                f"the agent showed the oracle of {self._task} replies that it did not give, which "
                "would be imitated, too: let its prompt show examples in another role"
            )
        messages: list[Message] = []
        for call, reply in zip(calls, self._replies, strict=True):
            messages += [Message(each.role, each.content) for each in call.messages]
            messages.append(Message("assistant", reply))
        return Transcript(self._task, tuple(messages), (False,) * len(calls), self._render.tools)
