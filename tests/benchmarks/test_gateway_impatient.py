"""The figures of impatient and of rewriting agents: they are right, and find a bad gateway out."""

import pytest

from ale_jax.gateway import streaming
from ale_jax.gateway.custody import retries
from ale_jax.status import Status
from benchmarks.gateway import impatient, rewriting
from benchmarks.gateway.impatient import ASKED, Client, lost
from benchmarks.gateway.plan import QUICK
from benchmarks.gateway.scripted import small_tokenizer

pytestmark = pytest.mark.slow

REPLY_S, PATIENCE_S = 3.0, 1.5


@pytest.fixture(scope="module")
def tokenizer():
    return small_tokenizer()


@pytest.fixture(scope="module")
def found():
    return impatient.measure(QUICK)


def test_nothing_is_lost_to_impatient_clients(found):
    assert found["impatient_reasons"] == []
    assert (found["slow_stream_lost"], found["slow_stream_tried"]) == (0, 3)
    assert (found["announced_retries_lost"], found["announced_retries_tried"]) == (0, 6)


@pytest.mark.parametrize("path", ASKED)
def test_a_gateway_that_is_silent_loses_its_client(tokenizer, monkeypatch, path):
    monkeypatch.setattr(streaming, "SILENT_S", 60.0)
    reason = lost(tokenizer, Client(path, True, silent_s=PATIENCE_S), REPLY_S)
    assert "HungUp" in reason and path in reason


def test_a_gateway_that_knows_no_retries_loses_the_episode(tokenizer, monkeypatch):
    monkeypatch.setattr(retries, "_is_retried", lambda call, retry: False)
    client = Client("/chat/completions", False, try_s=1.5 * impatient.AGAIN_S)
    assert Status.CALL_LOST.value in lost(tokenizer, client, 60.0)


def test_users_are_warned_of_agents_that_rewrite_their_history_and_of_no_others(monkeypatch):
    found = rewriting.measure(QUICK)
    assert found["rewriting_agents_warned"] == found["rewriting_agents_tried"] == 4
    assert (found["faithful_agents_warned"], found["faithful_agents_tried"]) == (0, 2)
    monkeypatch.setattr(rewriting, "MOSTLY", 1.1)
    assert rewriting.measure(QUICK)["rewriting_agents_warned"] == 0
