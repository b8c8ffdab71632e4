"""Records what a policy and a world say to each other."""

from __future__ import annotations

from collections.abc import Sequence

from ale_jax.agent.api import Policy, Reply
from ale_jax.worlds.api import Message


class RecordingPolicy:
    """Records the whole conversation of the policy that it wraps."""

    def __init__(self, policy: Policy):
        self._policy = policy
        self.messages: list[Message] = []

    def reply(self, new_messages: Sequence[Message]) -> Reply:
        self.messages.extend(new_messages)
        reply = self._policy.reply(new_messages)
        if reply.text or reply.stop != "context_full":  # there was room for a reply
            self.messages.append(Message("assistant", reply.text))
        return reply
