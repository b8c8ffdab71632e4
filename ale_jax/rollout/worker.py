"""A rollout worker: plays the episodes that it is given, several at once. Loads no jax."""

from __future__ import annotations

import dataclasses
import functools
import socket

from ale_jax.agent.external import PolicyAccess
from ale_jax.config.agent import AgentLimits, ExternalAgent
from ale_jax.config.worlds import Domain
from ale_jax.records import EpisodeKey, Prefix
from ale_jax.rollout.play import EpisodeResult, EpisodeRunner
from ale_jax.rollout.policy_client import PolicyClient
from ale_jax.sandbox.api import Runtime
from ale_jax.sandbox.datasets import NO_DATASETS, Datasets
from ale_jax.sandbox.egress.uplink import DIRECT, Uplink
from ale_jax.sandbox.runtime import runtime_of_run
from ale_jax.sandbox.sdk.login import ServiceLogin
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.worlds.digests import Digests, differing, digests
from ale_jax.worlds.families import Families, PlayableFamilies, open_families


@dataclasses.dataclass(frozen=True)
class WorkerSpec:
    """The configuration of a rollout worker. runtime: name of the sandbox runtime, to which
    `uplink` and `datasets` belong, or URL of the service of sandboxes, to which `login` belongs.
    sandbox: what a sandbox is, unless a world says otherwise. agent: with a command, it plays
    instead of our own loop. domains: with the families of all tasks. folder: as
    `WorldsConfig.folder`. worlds: what the families must be, wherever the worker is; () for
    anything. in_template: as of `open_families`. judges: as of `EpisodeRunner`."""

    runtime: str
    sandbox: SandboxSpec
    limits: AgentLimits
    domains: tuple[Domain, ...]
    folder: str = ""
    agent: ExternalAgent = dataclasses.field(default_factory=ExternalAgent)
    login: ServiceLogin = dataclasses.field(default_factory=ServiceLogin)
    uplink: Uplink = DIRECT
    datasets: Datasets = NO_DATASETS
    worlds: Digests = ()
    in_template: bool = False
    judges: bool = True


class RolloutWorker:
    """Its methods are called from several threads at once."""

    def __init__(self, spec: WorkerSpec):
        """ValueError if a world is not there, or not as where the run was started."""
        self._agent = spec.agent
        families = open_families(spec.domains, spec.folder, spec.in_template)
        _require_same(families, spec.worlds)
        runtime = functools.cache(functools.partial(opened_runtime, spec))
        if any(family.sandbox(family.first(), spec.sandbox) for family in families):
            runtime()  # or else a machine without one would only say so when it plays
        self._worlds = PlayableFamilies(families, spec.sandbox)
        self._runner = EpisodeRunner(
            lambda wanted: runtime().start(wanted, {"role": "rollout_worker"}),
            self._worlds,
            spec.limits,
            judges=spec.judges,
        )

    def play(
        self, key: EpisodeKey, url: str, conversation: str, prefix: Prefix | None
    ) -> EpisodeResult:
        """Plays an episode to its end, or to where `judge` goes on. url: of the gateway, which
        knows the conversation by its name."""
        if self._agent.command:
            access = PolicyAccess(url, conversation)
            return self._runner.play_external(key, self._agent, access)
        offer = functools.partial(self._worlds.offer, key.task)
        with PolicyClient(url, conversation, offer) as policy:
            return self._runner.play(key, policy, prefix, attempt=conversation)

    def judge(self, conversation: str) -> EpisodeResult:
        """Makes the verdict of an episode that `play` or `judge` returned without one."""
        return self._runner.judge(conversation)

    def cancel(self, conversation: str) -> None:
        """Ends the episode in progress by closing its sandbox, if it has one, or forgets one that
        waits for its verdict."""
        self._runner.cancel(conversation)

    def close(self) -> None:
        """Closes all sandboxes, which ends the episodes in progress."""
        self._runner.close()


def _require_same(families: Families, wanted: Digests) -> None:
    if not wanted:
        return
    if others := differing(dict(digests(families)), dict(wanted)):
        domain = families[others[0]].domain
        raise ValueError(
            f"family {others[0]} of world {domain.world} has other code or items on "
            f"{socket.gethostname()} than where the run was started: copy its folder there"
        )


def opened_runtime(spec: WorkerSpec) -> Runtime:
    """Returns what starts the sandboxes of a worker. Errors: as `pick_runtime`."""
    picked = runtime_of_run(spec.runtime, spec.sandbox, spec.login, spec.uplink, spec.datasets)
    picked.reap()  # removes sandboxes that a killed process on this machine has left behind
    return picked
