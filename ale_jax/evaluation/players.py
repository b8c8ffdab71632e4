"""Plays the episodes of an evaluation with a policy behind an endpoint."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import httpx

from ale_jax.config.engine import Sampling
from ale_jax.errors import RunFailed
from ale_jax.evaluation.chat import ChatPolicy
from ale_jax.evaluation.episodes import EpisodeRecord
from ale_jax.evaluation.plan import Plan
from ale_jax.records import Episode, EpisodeKey, Task
from ale_jax.rollout.play import EpisodeRunner
from ale_jax.status import STATUS_RULES, Status
from ale_jax.worlds.api import Message
from ale_jax.worlds.digests import digests
from ale_jax.worlds.endpoint import Endpoint
from ale_jax.worlds.families import Families

Deliver = Callable[[EpisodeRecord], None]


class EndpointPlayer:
    """Plays with an endpoint, up to `workers` episodes at once. retries: of an episode that the
    system could not finish."""

    def __init__(
        self, endpoint: Endpoint, sampling: Sampling, reply_tokens: int, workers: int, retries: int
    ):
        self._endpoint, self._sampling, self._reply_tokens = endpoint, sampling, reply_tokens
        self._workers, self._retries = workers, retries

    def play(
        self, plan: Plan, keys: Sequence[EpisodeKey], runner: EpisodeRunner, deliver: Deliver
    ) -> None:
        """Plays each of `keys` once, and delivers each as it finishes.

        Raises:
          RunFailed: the endpoint does not answer; what is delivered stays.
        """
        stopped = threading.Event()

        def refuse(request: httpx.Request) -> None:
            if stopped.is_set():
                raise RunFailed("the evaluation has ended")

        with (
            httpx.Client(event_hooks={"request": [refuse]}) as client,
            ThreadPoolExecutor(self._workers) as pool,
        ):
            waiting = [pool.submit(self._play, client, plan, key, runner) for key in keys]
            try:
                for each in as_completed(waiting):
                    deliver(each.result())
            except BaseException:
                stopped.set()  # what is in progress ends where it would ask for its next reply
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _play(
        self, client: httpx.Client, plan: Plan, key: EpisodeKey, runner: EpisodeRunner
    ) -> EpisodeRecord:
        for attempt in range(self._retries + 1):
            family = plan.families[key.task.family]
            most = family.limits.reply_tokens or self._reply_tokens
            limits = dataclasses.replace(family.limits, reply_tokens=most)
            offer = functools.partial(family.offer, key.task)
            chat = ChatPolicy(client, self._endpoint, self._sampling, limits, offer)
            episode = runner.play(key, chat, attempt=(key, attempt)).episode
            if not STATUS_RULES[episode.status].retry:
                break
        if episode.status is Status.MODEL_ERROR:
            raise RunFailed(
                f"the policy does not answer ({episode.detail:.300}): the same command goes on "
                "once it does"
            )
        told = record_of(plan.families, episode, chat.tokens)
        return dataclasses.replace(told, prompt_tokens=chat.prompt_tokens)


def record_of(
    families: Families,
    episode: Episode,
    tokens: int,
    turns: int = -1,
    messages: Sequence[Message] = (),
) -> EpisodeRecord:
    """Returns an episode as it is written down. tokens: that the policy wrote. turns: instead of
    the episode's, which those of an agent's program does not count; -1: the episode's. messages: of
    an agent's program, whose conversation the episode does not tell."""
    key, family = episode.key, families[episode.key.task.family]
    reward = episode.reward
    return EpisodeRecord(
        world=family.domain.world,
        family=family.name,
        item=key.task.item,
        sample=key.member,
        status=episode.status,
        reward=reward,
        rewards=dict(episode.rewards),
        metrics=dict(episode.metrics),
        solved=reward is not None and episode.is_solved,
        turns=episode.turns if turns < 0 else turns,
        policy_tokens=tokens,
        truncated=STATUS_RULES[episode.status].truncated,
        seconds=episode.seconds,
        metadata=_metadata(families, key.task),
        world_digest=_digests(families)[family.name],
        messages=messages_of(episode) or [{"role": m.role, "content": m.content} for m in messages],
        tools=family.offer(key.task).tools,
    )


def messages_of(episode: Episode) -> list[dict[str, Any]]:
    """Returns the conversation as it is written down; [] if the episode does not tell it. Who
    learns from it leaves out replies of a prefix, and those that were cut before they held an
    action (`weight` 0), and may leave out those that met an error."""
    messages: list[dict[str, Any]] = []
    replies = itertools.count(-episode.key.num_prefix_turns)
    for role, text, has_failed in episode.told:
        message: dict[str, Any] = {"role": role, "content": text}
        if has_failed:
            message["is_error"] = True
        if role == "assistant":
            number = next(replies)
            if number < 0 or number in (episode.cut_replies or ()):
                message["weight"] = 0
        messages.append(message)
    return messages


@functools.lru_cache(maxsize=8)
def _digests(families: Families) -> Mapping[str, str]:
    return dict(digests(families))


def _metadata(families: Families, task: Task) -> dict[str, str | int | float | bool]:
    """Returns the columns of an item by which results can be grouped: its short values."""
    row = families[task.family].item(task).row
    within = row.get("metadata")
    columns = {**row, **within} if isinstance(within, Mapping) else row
    return {
        name: value
        for name, value in columns.items()
        if isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= 64)
    }
