"""What whoever watches the gateway gets to see, without a token."""

import re

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ale_jax.gateway.app import make_app
from ale_jax.gateway.kept_calls import HEADER
from ale_jax.gateway.metrics import GatewayMetrics, RecentCall, RecentReply, load_page
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


@pytest.mark.parametrize("path", ["/chat/completions", "/completions", "/responses", "/messages"])
def test_the_tokens_of_a_call_that_is_sent_again_count_once(gateway, path):
    token = gateway.open()
    asked = {
        "/completions": {"prompt": [2, 1100, 5, 4]},
        "/responses": {"input": "task"},
    }.get(path, {"messages": [{"role": "user", "content": "task"}], "max_tokens": 100})
    headers = {"Authorization": f"Bearer {token}", HEADER: "k"}
    for _ in range(3):
        assert httpx.post(f"{gateway.url}{path}", json=asked, headers=headers).status_code == 200
    (branch,) = gateway.episodes.end(token, "all")
    counted = metrics(gateway)["ale_gateway_tokens_total", ("kind", "completion")]
    assert counted == len(branch.calls[0].sampled.ids)


def test_what_the_engine_counts_is_shown_as_it_is_when_it_is_asked_for():
    engine = {"preemptions": 0, "busy_seconds": 0.5}
    seen = GatewayMetrics(lambda: engine)
    engine["preemptions"] = 3
    shown = seen.text().decode()
    assert "ale_engine_preemptions_total 3.0" in shown
    assert "ale_engine_busy_seconds_total 0.5" in shown
    assert "ale_engine" not in GatewayMetrics().text().decode()


def test_the_page_shows_who_was_answered_and_how_quickly(gateway):
    page = gateway.url.removesuffix("/v1") + "/"
    before = httpx.get(page)
    assert before.status_code == 200 and "Nobody has called yet" in before.text
    assert "script" not in before.text
    token = gateway.open()
    play_with_openai(gateway.openai(token), stream=False)
    httpx.get(f"{gateway.url}/<b>", headers={"x-api-key": token})
    httpx.get(f"{gateway.url}/models", headers={"x-api-key": "unknown"})
    rows = dict(re.findall(r"<tr><td>([^<]+)</td>(.*?)</tr>", httpx.get(page).text, re.DOTALL))
    cells = {path: re.findall("<td>(.*?)</td>", row) for path, row in rows.items()}
    assert cells["/v1/chat/completions"][:2] == ["2", "0"]
    assert all(re.fullmatch(r"\d+\.\d\d s", each) for each in cells["/v1/chat/completions"][2:])
    assert cells["other"] == cells["/v1/models"] == ["1", "1", "–", "–", "–", "–"]


def test_rates_and_latencies_are_those_of_recent_calls(monkeypatch):
    seen = GatewayMetrics()
    monkeypatch.setattr("ale_jax.gateway.metrics.time.monotonic", lambda: 1000.0)
    ends = [900.0, *(980.0 + n / 10 for n in range(100))]
    seen.recent_calls.extend(
        RecentCall(end, "/v1/x", "200", 0.01 * n) for n, end in enumerate(ends)
    )
    seen.recent_replies.extend(RecentReply(end, 30) for end in ends)
    shown = re.findall("<d[dt]>(.*?)</d[dt]>", load_page(seen, "policy"))
    figures = dict(zip(shown[::2], shown[1::2], strict=True))
    assert figures["calls per second"] == "5.0", (
        "100 in the 20 s since the first of the last minute"
    )
    assert figures["tokens per second"] == "150"
    times = re.findall(r"<td>(\d\.\d\d) s</td>", load_page(seen, "policy"))
    assert times == ["0.50", "0.95", "0.99", "1.00"]
