"""What whoever watches the gateway gets to see, without a token."""

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ale_jax.gateway.app import make_app
from ale_jax.gateway.server import served
from tests.gateway.test_app import Gateway, play_with_openai


@pytest.fixture
def gateway():
    gateway = Gateway()
    with served(make_app(gateway.episodes, "policy")) as gateway.url:
        yield gateway


def metrics(gateway):
    found = httpx.get(gateway.url.removesuffix("/v1") + "/metrics")
    families = text_string_to_metric_families(found.text)
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_health_needs_no_token(gateway):
    found = httpx.get(gateway.url.removesuffix("/v1") + "/health")
    assert (found.status_code, found.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize("stream", [False, True])
def test_calls_and_tokens_are_counted(gateway, stream):
    token = gateway.open()
    play_with_openai(gateway.openai(token), stream)
    (branch,) = gateway.episodes.end(token, "all")
    client = gateway.openai(token)
    with pytest.raises(openai.APIStatusError):
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
    httpx.get(f"{gateway.url}/made/up", headers={"x-api-key": token})
    found = metrics(gateway)
    calls = "ale_gateway_calls_total"
    path = ("path", "/v1/chat/completions")
    assert found[calls, path, ("status", "200")] == 2
    assert found[calls, path, ("status", "410")] == 1
    assert found[calls, ("path", "other"), ("status", "410")] == 1
    assert found["ale_gateway_calls_in_progress",] == 0
    assert found["ale_gateway_call_seconds_count",] == 4
    tokens = {
        kind: found["ale_gateway_tokens_total", ("kind", kind)]
        for kind in ("prompt", "cached", "completion")
    }
    first, second = branch.calls
    prompts = len(first.context_ids()), len(second.context_ids())
    assert tokens["prompt"] == sum(prompts)
    assert tokens["cached"] == prompts[1] - len(second.prompt_ids)
    assert tokens["completion"] == sum(len(call.sampled.ids) for call in branch.calls)
