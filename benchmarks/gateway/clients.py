"""Unmodified clients, each of which plays a shell task to its end in a sandbox without network.

The policy's words are given, the episode, the gateway, the sandbox and its relay are real. A client
has passed if the verifier gives its episode the reward 1, and every reply that it got is trained on
once, with the ids that were sampled.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ale_jax.agent.external import PolicyAccess
from ale_jax.config.agent import AgentLimits, ExternalAgent
from ale_jax.envs.registry import make_env, needs_sandbox
from ale_jax.envs.shell.families import generate
from ale_jax.gateway.app import make_app
from ale_jax.gateway.episodes import Episodes
from ale_jax.gateway.server import served
from ale_jax.records import EpisodeKey, Task
from ale_jax.rollout.play import EpisodeRunner
from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.status import Status
from benchmarks.gateway.catalogue import CLIENTS, HOME, Client
from benchmarks.gateway.ids import delivered
from benchmarks.gateway.installs import NotInstalled, build_image, install
from benchmarks.gateway.plan import Plan
from benchmarks.gateway.scripted import ScriptedPolicy, Stage, small_tokenizer

KEY = EpisodeKey("train", 0, 0, Task("count", 3, "train"))
SECONDS = 240.0
DONE = "Done."
STEP = re.compile(r"Step \d+\.")


@dataclasses.dataclass(frozen=True)
class Played:
    """reason: why it has not passed; empty if it has."""

    name: str
    version: str
    reason: str
    seconds: float = 0.0
    replies: int = 0
    branches: int = 0
    forks: int = 0
    edited: int = 0

    @property
    def passed(self) -> bool:
        return not self.reason


def measure(plan: Plan, cache: Path) -> dict[str, Any]:
    folder = cache / "clients"
    folder.mkdir(parents=True, exist_ok=True)
    versions, missing = {}, {}
    for client in CLIENTS:
        try:
            versions[client.name] = install(client, folder)
        except NotInstalled as error:
            missing[client.name] = f"not installed: {error}"
    here = [client for client in CLIENTS if client.name in versions]
    try:
        image = build_image(here, folder)
    except NotInstalled as error:
        missing |= dict.fromkeys(versions, f"no image: {error}")
        here = []
    stage = Stage(small_tokenizer())
    played = [play(stage, client, versions[client.name], image) for client in here]
    played += [Played(name, versions.get(name, ""), reason) for name, reason in missing.items()]
    return {
        "clients_passed": sum(each.passed for each in played),
        "clients_tried": len(CLIENTS),
        "clients": [dataclasses.asdict(each) | {"passed": each.passed} for each in played],
    }


def play(stage: Stage, client: Client, version: str, image: str) -> Played:
    """Lets a client play the task, and compares what it was sent with what is trained on."""
    print(f"{client.name} {version} plays", file=sys.stderr, flush=True)
    policy, episodes = ScriptedPolicy(Script(stage, client)), Episodes()
    episode = stage.episode(policy, kept=4, obeys=False)
    token = episodes.open(episode)
    agent = agent_of(client, SECONDS)
    with served(make_app(episodes, "policy")) as url, contextlib.closing(in_docker(image)) as box:
        try:
            result = box.play_external(KEY, agent, PolicyAccess(url, token)).episode
        except SandboxStartError as error:
            return Played(client.name, version, f"no sandbox: {error}")
    branches, counts = episodes.end(token, "all"), episode.tree.counts
    lost, foreign = delivered(branches, policy.written, stage.tokenizer.decode)
    reasons = []
    if (result.status, result.reward) != (Status.FINISHED, 1.0):
        reasons.append(f"{result.status.value}, reward {result.reward}: {result.detail}")
    reasons += [f"{lost} tokens are not trained on, {foreign} wrongly"] if lost or foreign else []
    if counts.lost or counts.ambiguous:
        reasons.append(f"{counts.lost} answers are lost, {counts.ambiguous} ambiguous")
    return Played(
        client.name,
        version,
        "; ".join(reasons)[:600],
        round(result.seconds, 1),
        len(policy.written),
        len(branches),
        counts.forks,
        counts.edited,
    )


def in_docker(image: str) -> EpisodeRunner:
    """Plays episodes in containers of the image, which have no network."""
    spec = SandboxSpec(image=image, memory_mb=4096, pids=512, files_mb=512, command_seconds=60.0)
    start = lambda: pick_runtime("docker", spec).start(spec, {})  # noqa: E731
    return EpisodeRunner(start, make_env, needs_sandbox, AgentLimits())


def agent_of(client: Client, seconds: float) -> ExternalAgent:
    """seconds: of an episode."""
    command = ("sh", "-c", f'mkdir -p {HOME} && exec "$@"', "sh", *client.command)
    return ExternalAgent(command=command, env=client.variables, seconds=seconds)


class Script:
    """What the policy writes: the oracle's commands, by the client's tool, and the end. To a
    conversation that does not offer this tool, such as one that wants a title, it says a word."""

    def __init__(self, stage: Stage, client: Client):
        self._stage, self._client = stage, client
        calls = generate(KEY.task.family, KEY.task.seed).oracle
        self._commands = [each.arguments["command"] for each in calls if each.name == "bash"]
        if client.last:
            self._commands.append(client.last)

    def __call__(self, context: np.ndarray) -> np.ndarray:
        turns, offered = self._told(context)
        if not offered or turns >= len(self._commands):
            return self._stage.ids_of(DONE)
        arguments = {self._client.argument: self._commands[turns]} | dict(self._client.more)
        call = json.dumps({"name": self._client.tool, "arguments": arguments})
        # Written as no tokenizer would, so that ids made from the text again would be others.
        spelled = self._stage.ids_of(f"Step {turns + 1}.", spelled=True)[:-1]
        rest = self._stage.ids_of(f"\n<tool_call>\n{call}\n</tool_call>")
        return np.concatenate([spelled, rest])

    def _told(self, context: np.ndarray) -> tuple[int, bool]:
        """How many steps a conversation has, and whether it offers the tool. Some clients begin
        with replies of their own, which are no steps."""
        pieces = [text for text, _ in self._stage.tokenizer.pieces(context)]
        replies = [text for text in pieces if text.startswith("assistant\n")]
        turns = sum(bool(STEP.search(text)) for text in replies)
        return turns, any(f'"name": "{self._client.tool}"' in text for text in pieces)
