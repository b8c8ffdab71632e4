"""Calls to the policy, and the conversations that they make."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np

from ale_jax.gateway.messages import ChatMessage
from ale_jax.records import ReplyKind


class SampledTokens(Protocol):
    """What the engine sampled for a call, as in `ale_jax.engine.request.Sampled`."""

    @property
    def ids(self) -> np.ndarray: ...

    @property
    def logp_mu(self) -> np.ndarray: ...

    @property
    def version(self) -> np.ndarray: ...

    @property
    def expert_TLK(self) -> np.ndarray | None: ...

    @property
    def mask_id(self) -> np.ndarray | None: ...


@dataclasses.dataclass(frozen=True)
class GivenTurn:
    """A turn that was not sampled in this episode. prompt_ids: before the reply. text: the reply as
    the agent tells it."""

    prompt_ids: np.ndarray
    text: str
    reply: SampledTokens


@dataclasses.dataclass(eq=False)
class Call:
    """A call to the policy.

    parent: the call whose reply the agent has continued. messages: those since then. key: of the
    conversation up to the reply; b"" before there is one. sampled: None until the engine has
    answered. stop: as in `ale_jax.engine.request.Sampled`. lost: whether the agent may not have got
    the answer. is_retry: whether the agent says that it has asked this before. was_sent: whether
    something of a lost answer was sent that the agent could act on. abandoned: whether it is lost,
    and was asked for again. is_given: see `GivenTurn`. has_tools: whether it offers tools. retold:
    the replies among `messages`, as the agent tells them, each with the key of all that comes
    before. begun, ended, lost_at: when it was made, answered and lost, in ticks of the tree. kind,
    number: as in `records.Turn`, once the episode has ended.
    """

    parent: Call | None
    messages: tuple[ChatMessage, ...]
    prompt_ids: np.ndarray
    start: bytes
    reply: ChatMessage | None = None
    sampled: SampledTokens | None = None
    key: bytes = b""
    stop: str = "stop"
    stop_text: str = ""
    lost: bool = False
    is_retry: bool = False
    was_sent: bool = False
    abandoned: bool = False
    is_given: bool = False
    has_tools: bool = False
    retold: tuple[tuple[bytes, ChatMessage], ...] = ()
    begun: int = 0
    ended: int = 0
    lost_at: int = 0
    children: int = 0
    kind: ReplyKind = ReplyKind.ACTION
    number: int = 0

    @property
    def answer(self) -> SampledTokens:
        """What was sampled for the call, which the engine has answered."""
        assert self.sampled is not None, "the engine has not answered this call"
        return self.sampled

    def path(self) -> list[Call]:
        """Returns the calls from the beginning of the conversation to this one."""
        found: list[Call] = []
        call: Call | None = self
        while call is not None:
            found.append(call)
            call = call.parent
        return found[::-1]

    def context_ids(self) -> np.ndarray:
        """Returns all ids before the reply."""
        ids = [part for call in self.path()[:-1] for part in (call.prompt_ids, call.answer.ids)]
        return np.concatenate([*ids, self.prompt_ids])

    @property
    def num_tokens(self) -> int:
        return sum(len(call.prompt_ids) + len(call.answer.ids) for call in self.path())


@dataclasses.dataclass(frozen=True)
class Branch:
    """Calls of one conversation. The replies of the first `num_shared` are context here: they were
    delivered with an earlier branch, or not sampled in this episode."""

    calls: tuple[Call, ...]
    num_shared: int
