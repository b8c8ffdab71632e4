"""The HTTP server of the gateway, whatever it serves."""

import logging

import pytest
import uvicorn

from ale_jax.gateway.app import make_app
from ale_jax.gateway.episodes import Episodes
from ale_jax.gateway.server import served


def test_it_is_the_client_who_closes_a_silent_connection(monkeypatch):
    """OpenAI's and Anthropic's keep one for 5 s, litellm's for 15 s."""
    used = []

    class Config(uvicorn.Config):
        def __init__(self, *app, **options):
            super().__init__(*app, **options)
            used.append(self)

    monkeypatch.setattr(uvicorn, "Config", Config)
    with served(make_app(Episodes(), "policy")):
        pass
    assert [config.timeout_keep_alive > 15 for config in used] == [True]


def test_a_port_that_is_none_is_named():
    refused = pytest.raises(ValueError, match=r"cannot listen on 127.0.0.1:65536: .*another port")
    with refused, served(make_app(Episodes(), "policy"), port=65536):
        pass


def test_a_server_does_not_end_the_logging_of_its_process():
    closed = []

    class Handler(logging.Handler):
        def close(self):
            closed.append(self)
            super().close()

    handler = Handler()
    with served(make_app(Episodes(), "policy")):
        assert closed == []
    handler.close()
