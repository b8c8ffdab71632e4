"""A word game of `in_process` in which replies are held to a schema."""

from ale_jax.agent.api import Reply
from ale_jax.gateway.messages import ChatMessage
from ale_jax.gateway.requests import ChatRequest
from tests.system.in_process import Capitals, Game

SCHEMA = {"enum": ["No", "yes", "Ha", "well"]}


class Choices(Capitals):
    """A reply is one of four words, as JSON; those with a capital are rewarded."""

    def step(self, reply):
        return super().step(reply.removeprefix('"'))


class HeldConversation:
    """That of an agent which asks for a reply of the schema."""

    def __init__(self, ledger, name):
        self._episode, self._told = ledger.episodes.find(name), []

    def reply(self, new_messages):
        self._told += [ChatMessage(each.role, each.content) for each in new_messages]
        request = ChatRequest("", tuple(self._told), schema=SCHEMA)
        (pending,) = self._episode.ask(request)
        said = self._episode.answer(pending, request).message
        self._told.append(said)
        return Reply(said.content, "stop")


CHOICES = Game(Choices, HeldConversation)
LENGTHS = {"max_reply_tokens": 10}  # of a word and what is around it
