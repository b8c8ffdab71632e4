"""Agents that are programs of their own: one is started in the sandbox of each episode, speaks to
the policy through the gateway, and what it leaves behind is judged."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

from ale_jax.agent.api import AgentError
from ale_jax.agent.failures import FAILURES, status_of
from ale_jax.agent.verdicts import Played
from ale_jax.config.agent import ExternalAgent
from ale_jax.records import Episode, EpisodeKey
from ale_jax.sandbox.api import ProcessResult
from ale_jax.status import Status
from ale_jax.worlds.api import NoVerdictError
from ale_jax.worlds.checked import CheckedWorld, WorldError, text_of

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
NOT_STARTED = (126, 127)  # exit codes of a shell whose command cannot be executed, or is not there
KEPT_ERROR = 300  # characters of what the agent wrote to standard error last


@dataclasses.dataclass(frozen=True)
class PolicyAccess:
    """Where the policy of an episode is. url: of the gateway's API. token: the episode's."""

    url: str
    token: str = dataclasses.field(repr=False)


class Machine(Protocol):
    """What an agent needs of a sandbox: of this process (`sandbox.blocking.BlockingSandbox`) or of
    a service (`sandbox.sdk.client.RemoteSandbox`)."""

    def relay(self, port: int, host: str, target: int) -> AbstractContextManager[None]: ...

    def exec(
        self,
        argv: Sequence[str] | str,
        timeout: float | None = None,
        stdin: bytes = b"",
        cwd: str = "/work",
        env: Mapping[str, str] | None = None,
    ) -> ProcessResult: ...


def play(
    world: CheckedWorld,
    machine: Machine,
    agent: ExternalAgent,
    access: PolicyAccess,
    key: EpisodeKey,
) -> Episode:
    """As `interact`, and lets the world judge the episode."""
    return interact(world, machine, agent, access, key).judged().episode


def interact(
    world: CheckedWorld,
    machine: Machine,
    agent: ExternalAgent,
    access: PolicyAccess,
    key: EpisodeKey,
) -> Played:
    """Lets the agent play `key.task` to its end. Failures of the system are returned as a status,
    never as a reward of 0. The report counts no turns, which only the policy's side knows."""
    clock, start = _Clock(), time.monotonic()
    status, reward, detail = Status.FINISHED, None, ""
    metrics: tuple[tuple[str, float], ...] = ()
    try:
        if not world.can_grade:
            raise WorldError(
                f"family {key.task.family!r}: its world has no method grade, by which what an "
                "agent's own program leaves is judged"
            )
        instruction = text_of(clock.in_env(world.reset))
        result = _run(machine, agent, access, instruction)
        if result.timed_out or result.exit_code != 0:
            status = Status.TIME_LIMIT if result.timed_out else Status.BROKE_OFF
            detail = _ended(result)
        reward = clock.judging(world.grade, _answer(result.stdout))
        if not world.is_judged_apart:
            metrics = clock.in_env(world.metrics)
    except NoVerdictError as error:
        status, reward, detail = Status.NO_VERDICT, 0.0, str(error)
    except FAILURES as error:
        status, detail = status_of(error), f"{type(error).__name__}: {error}"
    episode = Episode(
        key=key,
        status=status,
        reward=reward,
        turns=0,
        malformed_calls=0,
        seconds=time.monotonic() - start,
        env_seconds=clock.env_seconds,
        verifier_seconds=clock.verifier_seconds,
        detail=detail,
        cut_replies=None,
        solved_at=world.solved_at,
        rewards=world.rewards,
        metrics=metrics,
    )
    return Played.of(episode, world)


def _run(
    machine: Machine, agent: ExternalAgent, access: PolicyAccess, instruction: str
) -> ProcessResult:
    gateway = urlsplit(access.url)
    assert gateway.hostname and gateway.port, f"{access.url} names host and port"
    url = f"http://{LOOPBACK}:{agent.port}{gateway.path}"
    fill = _filler({"instruction": instruction, "url": url, "token": access.token})
    variables = _client_variables(url, access.token) | {
        name: fill(text) for name, text in agent.env
    }
    with machine.relay(agent.port, gateway.hostname, gateway.port):
        result = machine.exec([fill(word) for word in agent.command], agent.seconds, env=variables)
    if result.exit_code in NOT_STARTED:
        raise AgentError(f"{agent.command[0]!r:.80} did not start: {_ended(result)}")
    return result


def _filler(values: Mapping[str, str]) -> Callable[[str], str]:
    # Not `str.format`: command lines have braces of their own. All at once, as an instruction may
    # have a name in braces, too, which is not to be filled in.
    places = re.compile("|".join(re.escape("{" + name + "}") for name in values))
    return lambda text: places.sub(lambda found: values[found[0][1:-1]], text)


def _client_variables(url: str, token: str) -> dict[str, str]:
    """Where the official clients look, and most agents do."""
    return {
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": token,
        "ANTHROPIC_BASE_URL": url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": token,
    }


def _answer(stdout: str) -> str:
    lines = [line for line in stdout.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def _ended(result: ProcessResult) -> str:
    how = "it was killed at its time limit" if result.timed_out else f"exit {result.exit_code}"
    said = " ".join(result.stderr.split())[-KEPT_ERROR:]
    return f"{how}: {said}" if said else how


class _Clock:
    """Measures the calls of an environment."""

    def __init__(self) -> None:
        self.env_seconds = self.verifier_seconds = 0.0

    def in_env(self, call: Callable[..., T], *args: object) -> T:
        start = time.monotonic()
        try:
            return call(*args)
        finally:
            self.env_seconds += time.monotonic() - start

    def judging(self, call: Callable[..., T], *args: object) -> T:
        before = self.env_seconds
        try:
            return self.in_env(call, *args)
        finally:
            self.verifier_seconds += self.env_seconds - before
