"""Unmodified clients, each of which plays a shell task to its end in a sandbox without network, by
itself and, where it can, by a sub-agent.

The policy's words are given, the episode, the gateway, the sandbox and its relay are real. A client
has passed if the verifier gives its episode the reward 1, every reply that it got is trained on
once, with the ids that were sampled, and its main conversation is one branch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ale_jax.agent.external import PolicyAccess
from ale_jax.config.agent import AgentLimits, ExternalAgent
from ale_jax.config.worlds import Domain
from ale_jax.gateway.app import make_app
from ale_jax.gateway.episodes import Episodes
from ale_jax.gateway.server import served
from ale_jax.records import EpisodeKey, Task
from ale_jax.rollout.play import EpisodeRunner
from ale_jax.sandbox.api import SandboxStartError
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.status import Status
from ale_jax.worlds.families import PlayableFamilies, open_families
from benchmarks.gateway.catalogue import CLIENTS, Client
from benchmarks.gateway.ids import delivered
from benchmarks.gateway.installs import NotInstalled, build_image, install
from benchmarks.gateway.plan import Plan
from benchmarks.gateway.scripted import ScriptedPolicy, Stage, small_tokenizer
from benchmarks.gateway.scripts import Script

KEY = EpisodeKey("train", 0, 0, Task("count", 3, "train"))
SECONDS = 240.0


@dataclasses.dataclass(frozen=True)
class Played:
    """reason: why it has not passed; empty if it has. delegates: whether a sub-agent did the work.
    lost, foreign: tokens, as in `delivered`. main_branches: that have a reply of the main
    conversation."""

    name: str
    version: str
    reason: str
    delegates: bool = False
    seconds: float = 0.0
    replies: int = 0
    lost: int = 0
    foreign: int = 0
    main_branches: int = 0
    branches: int = 0
    forks: int = 0
    edited: int = 0

    @property
    def passed(self) -> bool:
        return not self.reason


def measure(plan: Plan, cache: Path) -> dict[str, Any]:
    folder = cache / "clients"
    folder.mkdir(parents=True, exist_ok=True)
    stage = Stage(small_tokenizer())
    played = [each for client in CLIENTS for each in _all_ways(stage, client, folder)]
    failed = {each.name for each in played if not each.passed}
    return {
        "clients_passed": len(CLIENTS) - len(failed),
        "clients_tried": len(CLIENTS),
        "clients": [dataclasses.asdict(each) | {"passed": each.passed} for each in played],
    }


def _all_ways(stage: Stage, client: Client, folder: Path) -> Iterator[Played]:
    try:
        version = install(client, folder)
        image = build_image(client, folder)
    except NotInstalled as error:
        yield Played(client.name, "", f"not installed: {error}")
        return
    yield play(stage, client, version, image)
    if client.delegate:
        yield play(stage, client, version, image, delegates=True)


def play(stage: Stage, client: Client, version: str, image: str, delegates: bool = False) -> Played:
    """Lets a client play the task, and compares what it was sent with what is trained on."""
    how = " by a sub-agent" if delegates else ""
    print(f"{client.name} {version} plays{how}", file=sys.stderr, flush=True)
    script = Script(stage, client, KEY.task, delegates)
    policy, episodes = ScriptedPolicy(script), Episodes()
    episode = stage.episode(policy, kept=4, obeys=False)
    token = episodes.open(episode)
    agent = agent_of(client, SECONDS)
    with served(make_app(episodes, "policy")) as url, contextlib.closing(in_docker(image)) as box:
        try:
            result = box.play_external(KEY, agent, PolicyAccess(url, token)).episode
        except SandboxStartError as error:
            return Played(client.name, version, f"no sandbox: {error}", delegates)
    branches, counts = episodes.end(token, "all"), episode.tree.counts
    lost, foreign = delivered(branches, policy.written, stage.tokenizer.decode)
    roles = {id(each.ids): script.role(each.context) for each in policy.written}
    main = sum("main" in (roles[id(call.answer.ids)] for call in each.calls) for each in branches)
    reasons = []
    if (result.status, result.reward) != (Status.FINISHED, 1.0):
        reasons.append(f"{result.status.value}, reward {result.reward}: {result.detail}")
    reasons += [f"{lost} tokens are not trained on, {foreign} wrongly"] if lost or foreign else []
    if counts.lost or counts.ambiguous:
        reasons.append(f"{counts.lost} answers are lost, {counts.ambiguous} ambiguous")
    if main != 1:
        reasons.append(f"the main conversation has {main} branches")
    if delegates and "sub-agent" not in roles.values():
        reasons.append("no sub-agent has asked")
    return Played(
        client.name,
        version,
        "; ".join(reasons)[:600],
        delegates,
        round(result.seconds, 1),
        len(policy.written),
        lost,
        foreign,
        main,
        len(branches),
        counts.forks,
        counts.edited,
    )


def in_docker(image: str) -> EpisodeRunner:
    """Plays episodes in containers of the image, which have no network."""
    spec = SandboxSpec(image=image, memory_mb=4096, pids=512, files_mb=512, command_seconds=60.0)
    runtime = pick_runtime("docker", spec)
    worlds = PlayableFamilies(open_families((Domain("shell"),)), spec)
    return EpisodeRunner(lambda spec: runtime.start(spec, {}), worlds, AgentLimits())


def agent_of(client: Client, seconds: float) -> ExternalAgent:
    """seconds: of an episode."""
    return dataclasses.replace(client.recipe.agent, seconds=seconds)
