"""The agent's side of a ledger's conversation, in this process instead of behind HTTP."""

from ale_jax.agent.api import Reply
from ale_jax.engine.request import EngineStopped
from ale_jax.gateway.custody.ledger import Ledger, ReplyLimits
from ale_jax.gateway.messages import ChatMessage
from ale_jax.gateway.requests import CONTEXT_FULL, ApiError, ChatRequest


def same_for_all(tokens, replies=None):
    """The same limits of the replies of all tasks."""
    return lambda task: ReplyLimits(tokens, replies)


class Agent:
    """An `agent.api.Policy` for one conversation."""

    def __init__(self, ledger, name):
        self._episode, self._decode = ledger.episodes.find(name), ledger._tokenizer.decode
        self._told = []

    def reply(self, new_messages):
        self._told += [ChatMessage(each.role, each.content) for each in new_messages]
        try:
            (pending,) = self._episode.ask(ChatRequest("", tuple(self._told)))
        except ApiError as error:
            if error.code == CONTEXT_FULL:
                return Reply("", "context_full")
            raise EngineStopped(error.message) from error
        try:
            sampled = self._episode.sampled(pending)
        except ApiError as error:
            self._episode.drop(pending)
            raise EngineStopped(error.message) from error
        text = self._decode(sampled.ids)
        if not len(sampled.ids):
            self._episode.drop(pending)
            return Reply(text, sampled.stop)
        self._told.append(ChatMessage("assistant", text))
        self._episode.record(pending, self._told[-1], sampled)
        return Reply(text, sampled.stop)


class TalkingLedger(Ledger):
    """A ledger with an agent for each of its conversations."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._agents = {}

    def open(self, name, *arguments, **options):
        super().open(name, *arguments, **options)
        self._agents[name] = Agent(self, name)

    def reply(self, name, new_messages):
        return self._agents[name].reply(new_messages)
