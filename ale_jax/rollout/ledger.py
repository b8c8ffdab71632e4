"""The token ledger: the ids of every conversation, as the engine wrote them, joined into
trajectories.

Rollout workers exchange text. The ids that the policy wrote never leave this process, and are never
recomputed from text.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from ale_jax.agent.api import Message, Reply
from ale_jax.model.sampler import Sampling
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.records import Episode, EpisodeKey, Trajectory, Turn
from ale_jax.rollout.engine import Engine
from ale_jax.rollout.engines import Engines

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
    """Measures the agent's turns. The first one, before its first question, is no turn yet."""

    since: float  # the beginning of its turn
    asked: bool = False
    waits: bool = False
    total: float = 0.0

    def ask(self, now: float) -> None:
        self.total += now - self.since if self.asked else 0.0
        self.asked = self.waits = True

    def answer(self, now: float) -> None:
        self.waits, self.since = False, now

    def read(self, now: float) -> Activity:
        seconds = 0.0 if self.waits else now - self.since
        total = self.total + seconds if self.asked else 0.0
        return Activity(self.asked, self.waits, seconds, total)


@dataclasses.dataclass
class _Conversation:
    id: int  # of the engine
    key: np.ndarray
    sampling: Sampling
    agent: AgentClock
    prefix_turns: tuple[Turn, ...] = ()
    turns: list[Turn] = dataclasses.field(default_factory=list)  # the policy's own
    expert_TLK: list[np.ndarray] = dataclasses.field(default_factory=list)  # one per reply

    @property
    def start_version(self) -> int | None:
        return int(self.turns[0].version[0]) if self.turns else None


def conversation_key(seed: int, key: EpisodeKey, redraw: int = 0) -> np.ndarray:
    """Threefry key data [2] of an episode's conversation. It only depends on the episode's position
    in the run, so that a retried, resumed or differently scheduled episode draws the same numbers.

    redraw: how many episodes at this key were rejected for their behaviour, which the next one
    should not repeat.
    """
    phase = int.from_bytes(key.phase.encode(), "big")
    position = [seed, phase, key.group, key.member]
    words = np.random.SeedSequence(position, spawn_key=(redraw,) if redraw else ())
    return words.generate_state(2, np.uint32)


class Ledger:
    """Conversations between rollout workers and the engine. Thread-safe."""

    def __init__(
        self,
        engine: Engine | Engines,
        tokenizer: ChatTokenizer,
        seed: int,
        max_reply_tokens: int,
    ):
        self._engine, self._tokenizer = engine, tokenizer
        self._seed, self._max_reply_tokens = seed, max_reply_tokens
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
        sampling_key = conversation_key(self._seed, key, redraw)
        agent = AgentClock(time.monotonic())
        conversation = _Conversation(
            self._engine.open(), sampling_key, sampling, agent, prefix_turns
        )
        with self._lock:
            assert name not in self._open, "a conversation's name is used once"
            self._open[name] = conversation

    def reply(self, name: str, new_messages: Sequence[Message]) -> Reply:
        """The policy's next reply, after `new_messages`. Waits for the engine.

        Raises KeyError for a conversation that is not open, EngineStopped if the engine ends.
        """
        with self._lock:
            conversation = self._open[name]
        conversation.agent.ask(time.monotonic())
        self._tell(name, "asked", conversation)
        try:
            return self._sample(conversation, new_messages)
        finally:
            conversation.agent.answer(time.monotonic())
            self._tell(name, "answered", conversation)

    def _tell(self, name: str, what: str, conversation: _Conversation) -> None:
        if self._observer is not None:
            tokens = self._engine.stats.sampled_tokens
            self._observer(name, what, conversation.start_version, tokens)

    def _sample(self, conversation: _Conversation, new_messages: Sequence[Message]) -> Reply:
        prompt_ids = self._prompt_ids(conversation, new_messages)
        unread = () if conversation.turns else conversation.prefix_turns
        before = [ids for turn in unread for ids in (turn.prompt_ids, turn.action_ids)]
        sampled = self._engine.reply(
            conversation.id,
            np.concatenate([*before, prompt_ids]),
            self._max_reply_tokens,
            conversation.sampling,
            conversation.key,
        ).result()
        if sampled.expert_TLK is not None:
            conversation.expert_TLK.append(sampled.expert_TLK)
        text = self._tokenizer.decode(sampled.ids)
        if len(sampled.ids):
            turn = Turn(
                prompt_ids=prompt_ids,
                action_ids=sampled.ids,
                logp_mu=sampled.logp_mu,
                logp_old=sampled.logp_old,
                version=sampled.version,
                action_text=text,
                prompt_text="\n".join(m.content for m in new_messages if m.role != "system"),
            )
            conversation.turns.append(turn)
        return Reply(text, sampled.stop)

    def activity(self, name: str) -> Activity:
        """What the agent's side of an open conversation does at present."""
        with self._lock:
            return self._open[name].agent.read(time.monotonic())

    def stop(self, name: str) -> None:
        """Lets a reply in progress and all later ones fail. The conversation stays open."""
        with self._lock:
            conversation = self._open[name]
        self._engine.end(conversation.id)

    def start_version(self, name: str) -> int | None:
        """The version that sampled the first token of an open conversation; None before its first
        reply."""
        with self._lock:
            return self._open[name].start_version

    def close(self, name: str, episode: Episode | None) -> Trajectory | None:
        """Ends a conversation and frees its cache slot.

        With its episode, returns the trajectory, with the reward on the last turn. It has no turns,
        not even prefix turns, if the policy never wrote. Without an episode, nothing is kept.
        """
        with self._lock:
            conversation = self._open.pop(name)
        self._engine.end(conversation.id)
        if episode is None:
            return None
        turns = conversation.turns
        if not turns:
            return Trajectory(episode, (), self._engine.version)
        start_version, prefix_turns = int(turns[0].version[0]), conversation.prefix_turns
        turns = (*turns[:-1], dataclasses.replace(turns[-1], reward=episode.reward or 0.0))
        trajectory = Trajectory(
            episode, (*prefix_turns, *turns), start_version, num_prefix_turns=len(prefix_turns)
        )
        return _with_experts(trajectory, conversation.expert_TLK)

    def _prompt_ids(
        self, conversation: _Conversation, new_messages: Sequence[Message]
    ) -> np.ndarray:
        messages = [dataclasses.asdict(m) for m in new_messages]
        before = (*conversation.prefix_turns, *conversation.turns)
        ids = self._tokenizer.prompt_ids(messages, first=not before)
        end_of_turn = self._tokenizer.stop_ids[0]
        if before and before[-1].action_ids[-1] != end_of_turn:
            # The reply was cut off, or ended with the end-of-text token. The turn is ended here.
            ids = np.concatenate([[end_of_turn], ids])
        return ids.astype(np.int32)


def _with_experts(trajectory: Trajectory, parts: Sequence[np.ndarray]) -> Trajectory:
    """parts: experts of the tokens, in order, as the engine recorded them; empty if it records
    none."""
    if not parts:
        return trajectory
    expert_TLK = np.concatenate(parts)
    missing = trajectory.num_tokens - len(expert_TLK)
    assert missing == 1, f"{missing} tokens without experts: only the last one is never read"
    padding = [(0, missing), (0, 0), (0, 0)]
    return dataclasses.replace(
        trajectory, expert_TLK=np.pad(expert_TLK, padding, constant_values=-1)
    )
