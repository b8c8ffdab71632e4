"""A real gateway whose policy says what a test's function says, and sessions that use it."""

import asyncio
import contextlib
import json
from pathlib import Path

import numpy as np

from ale_jax.agent.assistant.assistant import Assistant, Setup
from ale_jax.agent.assistant.endpoint import EndpointSettings
from ale_jax.agent.assistant.permissions import MODES
from ale_jax.agent.assistant.sessions import Sessions
from ale_jax.agent.assistant.settings import Permissions, Settings
from ale_jax.gateway.app import make_app
from ale_jax.gateway.custody.token_tree import TokenTree
from ale_jax.gateway.episode import GatewayEpisode
from ale_jax.gateway.episodes import Episodes
from ale_jax.gateway.formats.json_calls import Hermes
from ale_jax.gateway.language import Language
from ale_jax.gateway.server import served
from tests.gateway.fake_policy import FakePolicy
from tests.gateway.speech import read, render

AUTO = Settings(permissions=Permissions(mode="auto"))


def call(name, /, **arguments):
    """As the policy writes it."""
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>{body}</tool_call>"


def in_turn(*replies):
    """A policy that says these, one after the other."""
    left = list(replies)
    return lambda messages: left.pop(0)


class Endpoint:
    """say: from the messages, as (role, text), to the policy's reply."""

    def __init__(self, say):
        self.seen = []

        def watched(messages):
            self.seen.append(messages)
            return say(messages)

        self.episodes, self.policy = Episodes(), FakePolicy(watched)
        tree = TokenTree(render)
        language = Language(Hermes(), lambda ids: read([4, *ids])[0][1])
        episode = GatewayEpisode(tree, self.policy, language, lambda n: np.array([0, n], np.uint32))
        self.token = self.episodes.open(episode)
        self.url = ""

    @property
    def settings(self):
        return EndpointSettings(self.url, "policy", self.token, attempts=1)

    def branches(self):
        """Ends the episode; what is to be trained on."""
        return self.episodes.end(self.token, "all")


@contextlib.contextmanager
def endpoint_that(say):
    endpoint = Endpoint(say)
    with served(make_app(endpoint.episodes, "policy")) as endpoint.url:
        yield endpoint


class Session:
    """What happened in a session, and how its last request ended."""

    def __init__(self, id, events, ended):
        self.id, self.events, self.ended = id, events, ended

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


def play(endpoint, folder, *requests, settings=AUTO, resume=None, ask=None):
    """A session in `folder`, whose state is beside it. resume: its id."""
    assert settings.permissions.mode in MODES
    told = []

    async def hear(event):
        told.append(event)

    async def talk():
        sessions = state_of(folder)
        log = sessions.open(resume) if resume else sessions.create()
        setup = Setup(settings, endpoint.settings, Path(folder), ask, (hear,))
        assistant = await Assistant.open(setup, log)
        try:
            ended = None
            for request in requests:
                ended = await assistant.work_on(request)
            return Session(log.id, told, ended)
        finally:
            await assistant.close()

    return asyncio.run(talk())


def state_of(folder):
    return Sessions(Path(folder).parent / f"{Path(folder).name}-state")
