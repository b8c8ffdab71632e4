"""Unmodified clients before a real model: they play shell tasks in a sandbox without a network.

Nothing is scripted: whether a task is solved is up to the model, and is reported. What has to
hold, whatever it writes, is that each of its tokens is trained on once, behind what it had read.
A model of this size may not call tools by its own format. So mini-swe-agent reads its commands from
blocks of code, as its config for such models has it; it takes blocks of bash, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ale_jax.agent.external import PolicyAccess
from ale_jax.config.engine import EngineShape, Sampling
from ale_jax.engine.engine import Engine
from ale_jax.engine.request import Sampled
from ale_jax.gateway.app import make_app
from ale_jax.gateway.conversations import StopChecker
from ale_jax.gateway.custody.engine_policy import EnginePolicy
from ale_jax.gateway.episodes import Episodes
from ale_jax.gateway.requests import SampleOptions
from ale_jax.gateway.server import served
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.model.weights.load import load_params, open_checkpoint
from ale_jax.records import EpisodeKey, Task
from ale_jax.rollout.play import EpisodeRunner
from benchmarks.gateway.catalogue import CLIENTS, Client
from benchmarks.gateway.clients import agent_of, in_docker
from benchmarks.gateway.constrained import writing_costs
from benchmarks.gateway.ids import delivered
from benchmarks.gateway.installs import build_image, install
from benchmarks.gateway.scripted import Stage, Written

BLOCKS = (
    *("--model-class", "litellm_textbased", "-c", "mini_textbased", "-c"),
    r"model.action_regex=```(?:mswea_bash_command|bash|sh)\s*\n(.*?)\n```",
)
# When its replies are used up, it is told so, and need not ask ten times again.
ONCE = ("MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT", "1")
TASKS = tuple(Task(family, 3, "train") for family in ("sort", "count", "config", "script"))
SECONDS = 600.0  # of an episode; a model of this size is slow without an accelerator
MAX_REPLY_TOKENS, MAX_REPLIES = 160, 8
WRITING_ROUNDS = 5
SAID = 200  # characters
ENGINE = EngineShape(
    max_sequences=2,
    max_sequence_length=4096,
    decode_steps=4,
    prefill_tokens=(64, 512),
    prefill_rows=1,
    prefill_budget=512,
    page_tokens=16,
    pages=2 * 4096 // 16,
    share_replies=True,
)


@dataclasses.dataclass(frozen=True)
class Played:
    """solved: the verifier's verdict. calls, blocks: replies that call a tool, or have a block of
    code. said: the beginning of each reply. tokens: that the model has written; of these, lost: not
    trained on, or not where they were written. foreign: trained on, and not written."""

    client: str
    version: str
    task: str
    solved: bool
    status: str
    replies: int
    calls: int
    blocks: int
    said: list[str]
    tokens: int
    lost: int
    foreign: int
    seconds: float


class Heard:
    """A policy of the gateway, and what it has read and written."""

    def __init__(self, policy: EnginePolicy):
        self._policy = policy
        # Per conversation, what was read and, in turn, what was written.
        self._said: dict[int, list[np.ndarray | Future[Sampled]]] = {}

    def open(self) -> int:
        number = self._policy.open()
        self._said[number] = []
        return number

    def reply(
        self,
        conversation: int,
        new_ids: np.ndarray,
        options: SampleOptions,
        key: np.ndarray,
        stop_checker: StopChecker | None,
    ) -> Future[Sampled]:
        sampled = self._policy.reply(conversation, new_ids, options, key, stop_checker)
        self._said[conversation] += [np.asarray(new_ids, np.int32), sampled]
        return sampled

    def end(self, conversation: int) -> None:
        self._policy.end(conversation)

    def written(self) -> Iterator[Written]:
        """Once all replies are there. Without those that the context had no room for."""
        for said in self._said.values():
            read: list[np.ndarray] = []
            for each in said:
                if isinstance(each, np.ndarray):
                    read.append(each)
                    continue
                ids = each.result().ids
                if len(ids):
                    yield Written(np.concatenate(read), ids, int(each.result().version[0]))
                read.append(ids)


def measure(cache: Path, weights: str) -> dict[str, Any]:
    """NotInstalled if a client cannot be had."""
    folder = cache / "clients"
    folder.mkdir(parents=True, exist_ok=True)
    named = {client.name: client for client in CLIENTS}
    mini = named["mini-swe-agent"]
    agent = mini.recipe.agent
    command = (agent.command[0], *BLOCKS, *agent.command[1:])
    agent = dataclasses.replace(agent, command=command, env=(*agent.env, ONCE))
    blocks = dataclasses.replace(mini, recipe=dataclasses.replace(mini.recipe, agent=agent))
    clients = {client: install(client, folder) for client in (named["openai"], blocks)}
    tokenizer, checkpoint = ChatTokenizer.load(weights), open_checkpoint(weights)
    engine = Engine(checkpoint.shape, ENGINE, tokenizer.stop_ids, load_params(checkpoint))
    policy = EnginePolicy(engine, tokenizer, Sampling(temperature=0.0), MAX_REPLY_TOKENS)
    with contextlib.closing(engine):
        play = partial(_play, Stage(tokenizer), policy)
        played = []
        for client, version in clients.items():
            with contextlib.closing(in_docker(build_image(client, folder))) as box:
                played += [play(box, client, version, task) for task in TASKS]
    found = {"weights": Path(weights).name, "device": jax.devices()[0].device_kind}
    for name in ("tokens", "lost", "foreign"):
        found[name] = sum(getattr(each, name) for each in played)
    for client in clients:
        theirs = [each for each in played if each.client == client.name]
        found[f"solved_by_{client.name}"] = sum(each.solved for each in theirs)
    found["played"] = [dataclasses.asdict(each) for each in played]
    costs = writing_costs(tokenizer, checkpoint, WRITING_ROUNDS)
    found["constrained_token_time_ratio"] = round(statistics.median(costs), 3)
    found["constrained_token_time_ratio_rounds"] = costs
    return {f"real_{name}": value for name, value in found.items()}


def _play(
    stage: Stage, policy: EnginePolicy, box: EpisodeRunner, client: Client, version: str, task: Task
) -> Played:
    print(f"{client.name} {version} plays {task.family}", file=sys.stderr, flush=True)
    heard, episodes = Heard(policy), Episodes()
    # As in training, the options are ours: temperature 0, so that the same weights say the same.
    episode = stage.episode(heard, kept=1, obeys=False, max_replies=MAX_REPLIES)
    token, key = episodes.open(episode), EpisodeKey("train", 0, 0, task)
    with served(make_app(episodes, "policy")) as url:
        access = PolicyAccess(url, token)
        result = box.play_external(key, agent_of(client, SECONDS), access).episode
    branches, written = episodes.end(token, "all"), list(heard.written())
    lost, foreign = delivered(branches, written, stage.tokenizer.decode)
    replies = [call.reply for branch in branches for call in branch.calls[branch.num_shared :]]
    return Played(
        client.name,
        version,
        task.family,
        solved=result.reward == 1.0,
        status=f"{result.status.value} {result.detail[:200]}".strip(),
        replies=len(replies),
        calls=sum(bool(reply.tool_calls) for reply in replies),
        blocks=sum("```" in reply.content for reply in replies),
        said=[reply.content[:SAID] for reply in replies],
        tokens=sum(len(each.ids) for each in written),
        lost=lost,
        foreign=foreign,
        seconds=round(result.seconds, 1),
    )
