"""Are bfcl-eval's tasks the same through the bridge as in the library alone?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ale_jax.agent.loop import ScriptedPolicy, play
from ale_jax.agent.transcripts import RecordingPolicy
from ale_jax.config.agent import AgentLimits
from ale_jax.config.model import MIN_VOCAB
from ale_jax.config.worlds import Domain
from ale_jax.gateway.app import make_app
from ale_jax.gateway.custody.engine_policy import ChatRender, language_of
from ale_jax.gateway.custody.token_tree import TokenTree
from ale_jax.gateway.episode import GatewayEpisode
from ale_jax.gateway.episodes import Episodes
from ale_jax.gateway.server import served
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from ale_jax.records import Episode, EpisodeKey, Task
from ale_jax.rollout.policy_client import PolicyClient
from ale_jax.status import Status
from ale_jax.system.agent_demonstrations import Script
from ale_jax.worlds.families import Families, Family, open_families
from ale_jax.worlds.items import SPLITS
from ale_jax.worlds.replies import Call, write_reply
from benchmarks.worlds.library_process import answers

ALONE = Path(__file__).with_name("bfcl_alone.py")
END = "Done."  # a reply without calls, after which the user goes on


class FunctionCalling(NamedTuple):
    """items: that were compared, in `episodes`, with the `calls` of these. exceptions: those of
    which a result or the verdict differs. gold, gold_by_gateway, empty: items that are solved by
    the expected calls, by a policy that writes them behind the gateway, and by saying nothing."""

    items: int
    episodes: int
    calls: int
    exceptions: dict[str, str]
    gold: int
    gold_by_gateway: int
    empty: int


def compare(python: str, each: int = 0) -> FunctionCalling:
    """Plays the first `each` items of each category and split; 0: all of them."""
    families = open_families((Domain("bfcl", options=(("python", python),)),))
    tasks = list(_tasks(families, each))
    exceptions, episodes, calls, gold, empty = {}, 0, 0, 0, 0
    found = answers(python, ALONE, (), (task.item for task in tasks))
    for task, alone in zip(tasks, found, strict=True):
        family = families[task.family]
        if not all(_same(family, task, episode) for episode in alone):
            exceptions[str(task.item)] = "a result or the verdict differs"
        episodes, calls = episodes + len(alone), calls + sum(map(_num_calls, alone))
        gold += _played(family, task, family.oracle(task))[0].is_solved
        empty += _played(family, task, [""] * family.item(task)["user_turns"])[0].is_solved
    by_gateway = _solved_by_gateway(families, tasks)
    return FunctionCalling(len(tasks), episodes, calls, exceptions, gold, by_gateway, empty)


def _tasks(families: Families, each: int) -> Iterator[Task]:
    for family in families:
        for split in SPLITS:
            names = list(family.items.rows(split))
            yield from (Task(family.name, name, split) for name in names[: each or None])


def _same(family: Family, task: Task, alone: dict[str, Any]) -> bool:
    """Whether the same replies have the same results and verdict."""
    replies, results = [], []
    for turn in alone["turns"]:
        for calls in turn:
            replies.append(write_reply("", [Call(*call) for *call, _ in calls]))
            results += [result for *_, result in calls]
        replies.append(END)
    episode, told = _played(family, task, replies)
    if episode.status is Status.TURN_LIMIT:  # then nobody reads the last results
        results = results[: len(told)]
    return (told, episode.reward) == (results, float(alone["valid"]))


def _played(family: Family, task: Task, replies: Sequence[str]) -> tuple[Episode, list[str]]:
    policy, key = RecordingPolicy(ScriptedPolicy(replies)), EpisodeKey("eval/equal", 0, 0, task)
    limits = AgentLimits(turns=len(replies))
    episode = play(family.checked(task, None), policy, key, limits)
    return episode, [each.content for each in policy.messages if each.role == "tool"]


def _solved_by_gateway(families: Families, tasks: Sequence[Task]) -> int:
    """Counts the tasks that a policy of scripted ids solves, as those of a run are played."""
    tokenizer, episodes = ChatTokenizer(train_bpe((), MIN_VOCAB)), Episodes()
    solved = 0
    with served(make_app(episodes, "script")) as url:
        for task in tasks:
            family = families[task.family]
            replies = family.oracle(task)
            token = episodes.open(
                GatewayEpisode(
                    TokenTree(ChatRender(tokenizer)),
                    Script([tokenizer.reply_ids(text) for text in replies]),
                    language_of(tokenizer),
                    lambda number: np.zeros(2, np.uint32),
                )
            )
            key, limits = EpisodeKey("eval/gateway", 0, 0, task), AgentLimits(turns=len(replies))
            with PolicyClient(url, token, partial(family.offer, task)) as policy:
                solved += play(family.checked(task, None), policy, key, limits).is_solved
            (branch,) = episodes.end(token, "all")  # one conversation, which nothing forked
            assert len(branch.calls) == len(replies), task
    return solved


def _num_calls(alone: dict[str, Any]) -> int:
    return sum(len(calls) for turn in alone["turns"] for calls in turn)
