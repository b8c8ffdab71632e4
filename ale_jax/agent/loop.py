"""The agent loop: one task, one policy, one world. It always ends in exactly one Episode."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

import numpy as np

from ale_jax.agent.api import Policy, PolicyError, ReachedState, Reply, StateMemory
from ale_jax.agent.failures import FAILURES, NotReproducedError, ReplayDivergedError, status_of
from ale_jax.agent.recording import RecordingPolicy
from ale_jax.agent.verdicts import Played
from ale_jax.config.agent import AgentLimits
from ale_jax.records import Episode, EpisodeKey, Prefix
from ale_jax.sandbox.api import SavedState
from ale_jax.status import STATUS_RULES, Status
from ale_jax.worlds.api import Message, NoVerdictError
from ale_jax.worlds.checked import CheckedWorld, StepResult, text_of

T = TypeVar("T")


NOT_SAVED = SavedState(b"", "")


class ScriptedPolicy:
    """Plays fixed replies, for oracles and tests."""

    def __init__(self, replies: Sequence[str]):
        self._replies = iter(replies)

    def reply(self, new_messages: Sequence[Message]) -> Reply:
        try:
            return Reply(next(self._replies), "stop")
        except StopIteration:
            raise PolicyError("the script has no further replies") from None


def play(
    world: CheckedWorld,
    policy: Policy,
    key: EpisodeKey,
    limits: AgentLimits,
    prefix: Prefix | None = None,
    memory: StateMemory | None = None,
) -> Episode:
    """Plays `key.task` to its end, after the turns of `prefix` if there is one, and lets the world
    judge it.

    memory: states of prefixes that are slow to replay; None replays every prefix. Failures of the
    system are returned as a status, never as a reward of 0.
    """
    return interact(world, policy, key, limits, prefix, memory).judged().episode


def interact(
    world: CheckedWorld,
    policy: Policy,
    key: EpisodeKey,
    limits: AgentLimits,
    prefix: Prefix | None = None,
    memory: StateMemory | None = None,
) -> Played:
    """Plays as `play` does, without a verdict that needs no sandbox."""
    playing, recorded = _Playing(world, memory), RecordingPolicy(policy)
    start = time.monotonic()
    reward, detail = None, ""
    try:
        status, reward = playing.run(recorded, key, limits, prefix)
    except NoVerdictError as error:
        # The verdict counts as 0. What steps have earned before, they have earned.
        status, reward, detail = Status.NO_VERDICT, playing.earned(), str(error)
    except FAILURES as error:
        status = status_of(error)
        detail = f"{type(error).__name__}: {error}"
    episode = Episode(
        key=key,
        status=status,
        reward=reward,
        turns=playing.turns,
        malformed_calls=playing.malformed_calls,
        seconds=time.monotonic() - start,
        env_seconds=playing.env_seconds,
        policy_seconds=playing.policy_seconds,
        verifier_seconds=playing.verifier_seconds,
        detail=detail,
        step_rewards=tuple(playing.step_rewards),
        cut_replies=tuple(playing.cut_replies),
        solved_at=world.solved_at,
        rewards=world.rewards,
        metrics=playing.metrics,
        # To train on it, the ledger has all that is needed, in tokens.
        told=_told(recorded.messages, playing.failed_replies, key.num_prefix_turns)
        if limits.record_episodes or not key.is_trained_on
        else (),
    )
    return Played.of(episode, world)


def _told(
    messages: Sequence[Message], failed: Collection[int], given: int
) -> tuple[tuple[str, str, bool], ...]:
    """failed: which of the policy's own replies, from 0, met an error. given: replies of a prefix,
    which come before these."""
    replies = itertools.count(-given)
    return tuple(
        (each.role, each.content, each.role == "assistant" and next(replies) in failed)
        for each in messages
    )


class _Playing:
    """An episode in progress. Its counters survive an exception that ends it."""

    def __init__(self, world: CheckedWorld, memory: StateMemory | None):
        self._world, self._memory = world, memory
        self.turns = 0
        self.malformed_calls = 0
        self.env_seconds = 0.0
        self.policy_seconds = 0.0
        self.verifier_seconds = 0.0
        self.step_rewards: list[float] = []  # of all steps, those of a prefix included
        self.cut_replies: list[int] = []
        self.failed_replies: list[int] = []
        self.metrics: tuple[tuple[str, float], ...] = ()
        self._seen: list[str] = []
        self._actions: list[str] = []

    def run(
        self, policy: Policy, key: EpisodeKey, limits: AgentLimits, prefix: Prefix | None
    ) -> tuple[Status, float | None]:
        status, reward = self._play(policy, key, limits, prefix)
        judged = STATUS_RULES[status].reward_valid
        if judged and not self._world.is_judged_apart:
            self.metrics = self._timed(self._world.metrics)
        if judged and self._actions and _is_replayed(key, limits.replay_share):
            self._require_reproduced(reward)
        return status, reward

    def earned(self, verdict: float = 0.0) -> float:
        """Returns the episode's reward: what its steps earned, and the verdict of `grade`."""
        return math.fsum((*self.step_rewards, verdict))

    def _play(
        self, policy: Policy, key: EpisodeKey, limits: AgentLimits, prefix: Prefix | None
    ) -> tuple[Status, float | None]:
        malformed_limit = limits.malformed_limit if key.is_trained_on else 0
        left = limits.turns
        if prefix is None:
            new = self._timed(self._world.reset)
            self._seen.append(text_of(new))
        else:
            reached = self._open(key, prefix)
            self.step_rewards.extend(reached.step_rewards)
            self._seen.extend(prefix.seen)
            self._actions.extend(prefix.actions)
            if prefix.ends:
                return Status.FINISHED, self.earned()
            left, new = left - len(prefix.actions), reached.told
        malformed_in_a_row = 0
        while self.turns < left:
            reply = self._reply(policy, new)
            if reply.stop == "context_full":
                if reply.text:
                    self.cut_replies.append(self.turns)
                return Status.TOKEN_LIMIT, self.earned(self._grade())
            # A reply cut at its length is played like any other: at worst it is malformed. Only the
            # ledger knows whether the context has cut it, which the API calls "length", too.
            try:
                step = self._step(reply.text)
            except NoVerdictError:
                self.turns += 1  # the reply was played, and what it led to counts
                raise
            if step.failed or step.malformed:
                self.failed_replies.append(self.turns)
            self.turns += 1
            self._actions.append(reply.text)
            self.step_rewards.append(step.reward)
            self.malformed_calls += step.malformed
            if step.ends:
                return _end_of(step, reply), self.earned()
            if step.malformed and reply.stop == "length":
                self.cut_replies.append(self.turns - 1)
            self._seen.append(text_of(step.told))
            malformed_in_a_row = malformed_in_a_row + 1 if step.malformed else 0
            if step.malformed and malformed_in_a_row == malformed_limit:
                return Status.ILLEGAL_CALLS, None
            new = step.told
        return Status.TURN_LIMIT, self.earned(self._grade())

    def _open(self, key: EpisodeKey, prefix: Prefix) -> ReachedState:
        """Reaches the state after the prefix. What is returned of a state that has ended, or is not
        worth keeping, has nothing saved."""
        memory, state_key = self._memory, (key.task, prefix)
        if memory and (known := memory.get(state_key)):
            if self._timed(self._world.load, known.saved):
                self._world.rewards = known.rewards
                return known
            memory.keep(state_key, None)
        before = self.env_seconds
        reached = self._replay(prefix)
        if memory and not prefix.ends and memory.wants(state_key, self.env_seconds - before):
            saved = self._timed(self._world.save)
            memory.keep(state_key, dataclasses.replace(reached, saved=saved) if saved else None)
        return reached

    def _replay(self, prefix: Prefix) -> ReachedState:
        """Plays the prefix turns from the beginning, which must lead to what was seen before."""
        told, earned = self._timed(self._world.reset), []
        conversation = [*told]
        for number, action in enumerate(prefix.actions, start=1):
            _require_same(text_of(told), prefix.seen[number - 1], number)
            try:
                step = self._step(action)
            except NoVerdictError as error:  # but there was a verdict before
                raise ReplayDivergedError(f"prefix turn {number}: {error}") from error
            told = step.told
            conversation += (Message("assistant", action), *told)
            earned.append(step.reward)
            if step.ends != (prefix.ends and number == len(prefix.actions)):
                ended = "ended" if step.ends else "did not end"
                raise ReplayDivergedError(f"prefix turn {number} {ended} the episode")
        if not prefix.ends:
            _require_same(text_of(told), prefix.seen[-1], len(prefix.actions) + 1)
        return ReachedState(NOT_SAVED, tuple(earned), tuple(conversation), self._world.rewards)

    def _require_reproduced(self, reward: float | None) -> None:
        """Plays the whole episode again. NotReproducedError if an observation or the reward
        differs, apart from a verdict that is still to come."""
        whole = Prefix(tuple(self._seen), tuple(self._actions))
        try:
            earned = self._replay(whole).step_rewards
            again = math.fsum((*earned, 0.0 if whole.ends else self._grade()))
        except (ReplayDivergedError, NoVerdictError) as error:
            raise NotReproducedError(str(error)) from None
        if again != reward:
            raise NotReproducedError(f"the replay earned {again}, the episode {reward}")

    def _reply(self, policy: Policy, new_messages: Sequence[Message]) -> Reply:
        start = time.monotonic()
        try:
            return policy.reply(new_messages)
        finally:
            self.policy_seconds += time.monotonic() - start

    def _step(self, action: str) -> StepResult:
        before, judged = self.env_seconds, False
        try:
            step = self._timed(self._world.step, action)
            judged = step.ends  # environments judge in the step that ends the episode
        except NoVerdictError:
            judged = True
            raise
        finally:
            if judged:
                self.verifier_seconds += self.env_seconds - before
        return step

    def _grade(self) -> float:
        before = self.env_seconds
        try:
            return self._timed(self._world.grade)
        finally:
            self.verifier_seconds += self.env_seconds - before

    def _timed(self, call: Callable[..., T], *args: object) -> T:
        start = time.monotonic()
        try:
            return call(*args)
        finally:
            self.env_seconds += time.monotonic() - start


def _end_of(step: StepResult, reply: Reply) -> Status:
    """How the step to which this reply led has ended its episode."""
    if step.truncated:
        return Status.TURN_LIMIT
    return Status.REPLY_LIMIT if reply.stop == "length" else Status.FINISHED


def _is_replayed(key: EpisodeKey, share: float) -> bool:
    """Drawn by the key's position in the run, so that a retry is treated like the original."""
    if not (share and key.is_trained_on):
        return False
    return bool(np.random.default_rng([key.group, key.member]).random() < share)


def _require_same(seen: str, expected: str, number: int) -> None:
    if seen != expected:
        raise ReplayDivergedError(
            f"before turn {number} the environment showed {seen!r:.120} "
            f"instead of {expected!r:.120}"
        )
