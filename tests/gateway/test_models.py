"""Several policies behind one gateway, which clients choose by their names."""

import anthropic
import numpy as np
import openai
import pytest

from ale_jax.gateway.app import make_app
from ale_jax.gateway.custody.token_tree import TokenTree
from ale_jax.gateway.episode import GatewayEpisode
from ale_jax.gateway.episodes import Episodes
from ale_jax.gateway.language import Language
from ale_jax.gateway.server import served
from tests.gateway.fake_policy import FakePolicy
from tests.gateway.speech import read, render
from tests.gateway.test_app import HERMES

ASKED = [{"role": "user", "content": "who?"}]


def episode_saying(text):
    keys = lambda number: np.array([0, number], np.uint32)  # noqa: E731
    language = Language(HERMES, lambda ids: read([4, *ids])[0][1])
    return GatewayEpisode(TokenTree(render), FakePolicy(lambda _: text), language, keys)


@pytest.fixture(params=[{}, {"sql": "I am sql."}], ids=["alone", "with another"])
def clients(request):
    episodes = Episodes()
    key = episodes.open(episode_saying("I am base."))
    others = {name: episode_saying(text) for name, text in request.param.items()}
    with served(make_app(episodes, "base", others=others)) as url:
        told = {"api_key": key, "max_retries": 0}
        theirs = anthropic.Anthropic(base_url=url.removesuffix("/v1"), **told)
        yield openai.OpenAI(base_url=url, **told), theirs, list(others)


def chat(clients, model):
    return (
        clients[0].chat.completions.create(model=model, messages=ASKED).choices[0].message.content
    )


def streamed_chat(clients, model):
    chunks = clients[0].chat.completions.create(model=model, messages=ASKED, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def respond(clients, model):
    return clients[0].responses.create(model=model, input=ASKED).output_text


def send(clients, model):
    asked = {"model": model, "messages": ASKED, "max_tokens": 50}
    return clients[1].messages.create(**asked).content[0].text


APIS = [chat, streamed_chat, respond, send]


@pytest.mark.parametrize("ask", APIS)
def test_a_client_gets_the_policy_that_it_names(clients, ask):
    *_, others = clients
    assert [model.id for model in clients[0].models.list()] == ["base", *others]
    assert ask(clients, "base") == ask(clients, "") == "I am base."
    for name in others:
        assert ask(clients, name) == f"I am {name}."


@pytest.mark.parametrize("ask", APIS)
def test_one_that_is_alone_answers_to_any_name(clients, ask):
    if clients[2]:
        with pytest.raises((openai.NotFoundError, anthropic.NotFoundError)) as refused:
            ask(clients, "gpt-7")
        assert "there is no model 'gpt-7': there are base, sql" in refused.value.message
    else:
        assert ask(clients, "gpt-7") == "I am base."


def test_a_conversation_goes_on_with_another_policy(clients):
    client, _, others = clients
    first = client.responses.create(model="base", input=ASKED)
    for name in others:
        asked = {"previous_response_id": first.id, "input": ASKED}
        second = client.responses.create(model=name, **asked)
        assert second.output_text == f"I am {name}."
        assert second.usage.input_tokens > first.usage.input_tokens


def test_tokens_are_counted_for_a_policy_that_is_there(clients):
    _, client, others = clients
    count = lambda model: client.messages.count_tokens(model=model, messages=ASKED)  # noqa: E731
    assert count("base").input_tokens > 0
    if others:
        with pytest.raises(anthropic.NotFoundError, match="there is no model"):
            count("gpt-7")
