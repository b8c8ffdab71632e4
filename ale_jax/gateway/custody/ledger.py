"""The token ledger: the episodes in progress and their conversations with the engine, joined into
trajectories.

Agents exchange text, through the gateway. The ids that the policy wrote never leave this process,
and are never recomputed from text.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ale_jax.config.engine import PLAIN, Sampling
from ale_jax.engine.request import InferenceEngine
from ale_jax.gateway.custody.engine_policy import ChatRender, EnginePolicy, language_of
from ale_jax.gateway.custody.reply_kinds import cut_at, mark_replies
from ale_jax.gateway.custody.sampling_masks import MaskTable
from ale_jax.gateway.custody.token_tree import BranchChoice, TokenTree
from ale_jax.gateway.custody.trajectories import given_turn, trajectory_of
from ale_jax.gateway.episode import EpisodeOptions, GatewayEpisode
from ale_jax.gateway.episodes import Episodes
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.records import CallCounts, Episode, EpisodeKey, Task, Trajectory, Turn
from ale_jax.status import Status

# (name of the conversation; "asked" or "answered"; version that sampled its first token, if it has
# one; tokens that the engine has sampled) -> None
Observer = Callable[[str, str, int | None, int], None]


@dataclasses.dataclass(frozen=True)
class Activity:
    """What the agent's side of a conversation does, as far as its questions to the policy tell.

    asked: whether it has asked for its first reply. waits: whether it waits for a reply.
    turn_seconds: for how long it has been its turn; 0 while it waits. total_seconds: all its turns.
    """

    asked: bool
    waits: bool
    turn_seconds: float
    total_seconds: float


@dataclasses.dataclass
class AgentClock:
    """Measures the agent's turns, and how long it waits for the policy. The first turn, before its
    first question, is none yet. replies: start and end of each time that it has waited."""

    since: float  # the beginning of its turn, or of its question
    asked: bool = False
    waits: bool = False
    total: float = 0.0
    replies: list[tuple[float, float]] = dataclasses.field(default_factory=list)

    @property
    def waited(self) -> float:
        """Seconds in which it has waited."""
        return sum(end - start for start, end in self.replies)

    def ask(self, now: float) -> None:
        self.total += now - self.since if self.asked else 0.0
        self.asked = self.waits = True
        self.since = now

    def answer(self, now: float) -> None:
        if self.waits:
            self.replies.append((self.since, now))
        self.waits, self.since = False, now

    def read(self, now: float) -> Activity:
        seconds = 0.0 if self.waits else now - self.since
        total = self.total + seconds if self.asked else 0.0
        return Activity(self.asked, self.waits, seconds, total)


@dataclasses.dataclass
class _Conversation:
    """sampling: how its replies are drawn. masks: what they could be drawn from."""

    episode: GatewayEpisode
    agent: AgentClock
    sampling: Sampling
    masks: MaskTable


def conversation_key(seed: int, key: EpisodeKey, redraw: int = 0, number: int = 0) -> np.ndarray:
    """Returns the Threefry key data [2] of an episode's conversation. It only depends on the
    episode's position in the run, so that a retried, resumed or differently scheduled episode draws
    the same numbers.

    redraw: how many episodes at this key were rejected for their behaviour, which the next one
    should not repeat. number: of the conversation, in an episode that has several.
    """
    phase = int.from_bytes(key.phase.encode(), "big")
    position = [seed, phase, key.group, key.member]
    spawned = (redraw, number) if number else (redraw,) if redraw else ()
    words = np.random.SeedSequence(position, spawn_key=spawned)
    return words.generate_state(2, np.uint32)


@dataclasses.dataclass(frozen=True)
class ReplyLimits:
    """Of the replies of an episode. tokens: of one. replies: that its agents get; None for no
    limit. context: tokens of a conversation, its replies included; None for what the engine
    allows."""

    tokens: int
    replies: int | None = None
    context: int | None = None


LimitsOf = Callable[[Task], ReplyLimits]


class Ledger:
    """Conversations between agents and the engine. Thread-safe.

    episodes: of the gateway; its clients call an episode by the name of its conversation.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        tokenizer: ChatTokenizer,
        seed: int,
        limits: LimitsOf,
        branches: BranchChoice = "all",
    ):
        """limits: of the episodes of a task. branches: of an episode, that become its
        trajectory."""
        self._engine, self._tokenizer = engine, tokenizer
        self._seed, self._limits, self._branches = seed, limits, branches
        self._render, self._language = ChatRender(tokenizer), language_of(tokenizer)
        self.episodes = Episodes()
        self._lock = threading.Lock()
        self._open: dict[str, _Conversation] = {}
        self._observer: Observer | None = None

    def observe(self, observer: Observer) -> None:
        """Calls `observer` whenever an agent begins or ends to wait for a reply, from the thread
        that asks for it."""
        self._observer = observer

    def open(
        self,
        name: str,
        key: EpisodeKey,
        sampling: Sampling,
        prefix_turns: tuple[Turn, ...] = (),
        redraw: int = 0,
    ) -> None:
        """Opens a conversation called `name`. Names must be unguessable: any client that knows one
        can write to the conversation.

        It continues after the turns `prefix_turns`, whose ids the engine reads with the first
        prompt. Members of a group that share these turns therefore share their pages. redraw: as in
        `conversation_key`.
        """
        agent = AgentClock(time.monotonic())
        # Evaluations may cut where training does not, and nobody learns what was left.
        masks = MaskTable(sampling if key.is_trained_on else PLAIN)
        limits = self._limits(key.task)
        most = self._engine.max_sequence_length
        most = min(limits.context or most, most)
        options = EpisodeOptions(
            obeys=False,
            max_replies=limits.replies,
            max_tokens=most,
            max_chars=most * self._tokenizer.longest_token,
            given=list(map(given_turn, prefix_turns)),
            on_turn=lambda waits: self._turn(name, waits),
        )
        episode = GatewayEpisode(
            TokenTree(self._render),
            EnginePolicy(self._engine, self._tokenizer, sampling, limits.tokens, masks, most),
            self._language,
            partial(conversation_key, self._seed, key, redraw),
            options,
        )
        with self._lock:
            assert name not in self._open, "a conversation's name is used once"
            self._open[name] = _Conversation(episode, agent, sampling, masks)
        self.episodes.open(episode, name)

    def activity(self, name: str) -> Activity:
        """Returns what the agent's side of an open conversation does at present."""
        with self._lock:
            return self._open[name].agent.read(time.monotonic())

    def stop(self, name: str) -> None:
        """Lets a reply in progress and all later ones fail. The conversation stays open."""
        with self._lock:
            episode = self._open[name].episode
        episode.stop()

    def replies(self, name: str) -> Sequence[tuple[float, float]]:
        """Returns when the agent of an open conversation has waited for replies: start and end of
        each time, in seconds of `time.monotonic`."""
        with self._lock:
            return tuple(self._open[name].agent.replies)

    def start_version(self, name: str) -> int | None:
        """Returns the version that sampled the first token of an open conversation; None before its
        first reply."""
        with self._lock:
            episode = self._open[name].episode
        return episode.tree.start_version

    def close(self, name: str, episode: Episode | None) -> Trajectory | None:
        """Ends a conversation and frees its cache slot.

        With its episode, returns the trajectory, with the reward on the last turn. It has no turns,
        not even prefix turns, if the policy never wrote. Without an episode, nothing is kept.
        """
        with self._lock:
            conversation = self._open.pop(name)
        tree = conversation.episode.tree
        branches = self.episodes.end(name, self._branches)
        if episode is None:
            return None
        start_version = tree.start_version
        if start_version is None:
            start_version = self._engine.version
        if doubt := _doubt(tree, was_killed=episode.status is Status.TIME_LIMIT):
            episode = dataclasses.replace(
                episode, status=Status.CALL_LOST, reward=None, detail=doubt
            )
        mark_replies(tree.answered(), episode.cut_replies)
        if episode.cut_replies is None:
            # It is of an agent's program, which does not say how long it waited.
            episode = dataclasses.replace(episode, policy_seconds=conversation.agent.waited)
            limit = conversation.episode.limit or cut_at(tree.answered())
            episode = _at_limit(episode, limit)
        counts, unseen = tree.counts, conversation.episode.unseen
        trajectory = trajectory_of(
            episode,
            branches,
            start_version,
            self._tokenizer.decode,
            mask_Iw=conversation.masks.masks(),
            sampling=conversation.sampling,
            calls=CallCounts(counts.forks, counts.edited, counts.lost, counts.left_out, unseen),
        )
        if episode.turns:
            return trajectory
        # An agent's program has played it, whose turns nobody else has counted.
        turns = len(trajectory.sampled_turns)
        return dataclasses.replace(trajectory, episode=dataclasses.replace(episode, turns=turns))

    def _turn(self, name: str, waits: bool) -> None:
        """The agent waits for the policy, or has what it waited for."""
        with self._lock:
            if (conversation := self._open.get(name)) is None:
                return  # it was closed meanwhile
            agent, now = conversation.agent, time.monotonic()
            agent.ask(now) if waits else agent.answer(now)
        if self._observer is not None:
            tokens, start = self._engine.stats.sampled_tokens, conversation.episode.tree
            what = "asked" if waits else "answered"
            self._observer(name, what, start.start_version, tokens)


def _at_limit(episode: Episode, limit: Status | None) -> Episode:
    """Says that a limit ended the episode of an agent's program, if it ended after one: at its
    last call. Whether it exits with an error then is its own affair."""
    if limit is None or episode.status not in (Status.FINISHED, Status.BROKE_OFF):
        return episode
    return dataclasses.replace(episode, status=limit)


def _doubt(tree: TokenTree, was_killed: bool) -> str:
    """Why it is not sure what the agent has acted on; empty if it is. was_killed: so it cannot have
    acted on the calls that ended with it."""
    lost, ambiguous = tree.counts.lost, tree.counts.ambiguous
    if was_killed:
        lost -= tree.num_lost_last
    if not (lost or ambiguous):
        return ""
    return f"{lost} answers may not have reached the agent, {ambiguous} continue one of several"
