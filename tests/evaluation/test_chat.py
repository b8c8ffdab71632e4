"""The policy behind an endpoint: what it is asked, and what becomes of its answers."""

import httpx
import pytest

from ale_jax.agent.api import PolicyError, Reply
from ale_jax.config.engine import Sampling
from ale_jax.evaluation.chat import ChatPolicy
from ale_jax.worlds import endpoint as endpoints
from ale_jax.worlds.api import Limits, Message
from ale_jax.worlds.endpoint import Endpoint
from ale_jax.worlds.replies import Call, write_reply
from ale_jax.worlds.tools import Offer
from tests.evaluation.endpoint import endpoint
from tests.rows import each_row

ERROR = {"error": {"message": "no"}}
SHORT = Limits(reply_tokens=32)


def replies(answer, *told, sampling=Sampling(), monkeypatch=None):  # noqa: B008
    with endpoint(answer) as (url, asked), httpx.Client() as client:
        policy = ChatPolicy(client, Endpoint(url, "m", "secret"), sampling, Limits(0, 32))
        return [policy.reply([Message("tool", each)]) for each in told], asked, policy.tokens


def test_a_conversation_is_sent_whole_and_sampled_as_was_asked():
    sampling = Sampling(temperature=0.7, top_p=0.8, top_k=20)
    said, asked, tokens = replies(lambda body: "two words", "a", "b", sampling=sampling)
    assert said == [Reply("two words", "stop")] * 2 and tokens == 4
    first, second = asked
    assert first["messages"] == [{"role": "user", "content": "a"}]
    assert [each["content"] for each in second["messages"]] == ["a", "two words", "b"]
    assert [each["role"] for each in second["messages"]] == ["user", "assistant", "user"]
    for body in asked:
        assert (body["model"], body["max_tokens"]) == ("m", 32)
        assert (body["temperature"], body["top_p"], body["top_k"]) == (0.7, 0.8, 20)
        assert "min_p" not in body and body["authorization"] == "Bearer secret"


def _called(*names):
    calls = [
        {"id": f"id-{name}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for name in names
    ]
    choice = {"message": {"content": None, "tool_calls": calls}, "finish_reason": "tool_calls"}
    return 200, {"choices": [choice], "usage": {"completion_tokens": 5, "total_tokens": 20}}


def test_tools_are_offered_and_calls_are_read_and_answered():
    tool = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}
    answers = iter([_called("ls", "pwd"), "done"])
    with endpoint(lambda body: next(answers)) as (url, asked), httpx.Client() as client:
        offer = lambda: Offer((tool,), must_call=True)  # noqa: E731
        policy = ChatPolicy(client, Endpoint(url, "m"), Sampling(), SHORT, offer)
        first = policy.reply([Message("user", "go")])
        second = policy.reply([Message("tool", "a"), Message("tool", "b"), Message("tool", "c")])
    assert first == Reply(write_reply("", [Call("ls", {}), Call("pwd", {})]), "stop")
    assert second == Reply("done", "stop")
    assert [(body["tools"], body["tool_choice"]) for body in asked] == [([tool], "required")] * 2
    _, reply, *results = asked[1]["messages"]
    assert [call["function"]["name"] for call in reply["tool_calls"]] == ["ls", "pwd"]
    told = [(each["role"], each.get("tool_call_id"), each["content"]) for each in results]
    assert told == [("tool", "id-ls", "a"), ("tool", "id-pwd", "b"), ("user", None, "c")]


def test_a_call_without_an_id_is_answered_all_the_same():
    call = {"type": "function", "function": {"name": "ls", "arguments": "{}"}}
    choice = {"message": {"content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}
    usage = {"completion_tokens": 5, "total_tokens": 20}
    answers = iter([(200, {"choices": [choice], "usage": usage}), "done"])
    said, asked, _ = replies(lambda body: next(answers), "a", "b")
    assert said == [Reply(write_reply("", [Call("ls", {})]), "stop"), Reply("done", "stop")]
    _, call, result = asked[1]["messages"]
    assert call["tool_calls"][0]["id"] == result["tool_call_id"]


def test_the_context_of_a_world_ends_the_conversation():
    with endpoint(lambda body: _called("ls")) as (url, asked), httpx.Client() as client:
        policy = ChatPolicy(client, Endpoint(url, "m"), Sampling(), Limits(0, 32, 40))
        assert policy.reply([Message("user", "go")]).stop == "stop"
        assert policy.reply([Message("user", "on")]).stop == "stop"
    assert [body["max_tokens"] for body in asked] == [32, 20], "20 tokens were used"
    with endpoint(lambda body: _called("ls")) as (url, asked), httpx.Client() as client:
        policy = ChatPolicy(client, Endpoint(url, "m"), Sampling(), Limits(0, 32, 20))
        policy.reply([Message("user", "go")])
        assert policy.reply([Message("user", "on")]) == Reply("", "context_full")
    assert len(asked) == 1
    with pytest.raises(PolicyError, match=r"usage\.total_tokens"):
        with endpoint(lambda body: "words") as (url, _), httpx.Client() as client:
            policy = ChatPolicy(client, Endpoint(url, "m"), Sampling(), Limits(0, 32, 40))
            policy.reply([Message("user", "go")])


def test_what_means_nothing_is_not_sent():
    _, (body,), _ = replies(lambda body: "x", "a")
    assert not {"top_k", "min_p"} & set(body)


def test_a_full_context_and_a_cut_reply_are_told_apart():
    full = {"error": {"message": "too long", "code": "context_length_exceeded"}}
    assert replies(lambda body: (400, full), "a")[0] == [Reply("", "context_full")]
    choice = {"message": {"content": None}, "finish_reason": "length"}
    cut = {"choices": [choice], "usage": {"completion_tokens": 32}}
    assert replies(lambda body: (200, cut), "a")[0] == [Reply("", "length")]


def test_an_endpoint_that_is_busy_is_asked_again(monkeypatch):
    monkeypatch.setattr(endpoints.time, "sleep", lambda seconds: None)
    answers = iter([(503, ERROR), (429, ERROR), "at last"])
    assert replies(lambda body: next(answers), "a")[0] == [Reply("at last", "stop")]
    with pytest.raises(PolicyError, match=r"answers 503"):
        replies(lambda body: (503, ERROR), "a")


def _counted(**usage):
    choice = {"message": {"content": "x"}, "finish_reason": "stop"}
    return 200, {"choices": [choice], "usage": usage}


@pytest.mark.heavy
@each_row(
    "answer, said",
    [
        ((400, ERROR), "answers 400"),
        ((200, {"choices": []}), "answers 200"),
        ((200, {"choices": [{"message": {"content": "x"}}]}), "usage.completion_tokens"),
        ((200, {"choices": [{"message": {"content": None}}]}), "answers 200"),
        ((200, {"choices": [{"message": {"content": 3}}]}), "answers 200"),
        ((200, []), "answers 200"),
        (_counted(completion_tokens=float("inf")), "usage.completion_tokens is inf"),
        (_counted(completion_tokens=-5), "usage.completion_tokens is -5"),
        (_counted(completion_tokens=True), "usage.completion_tokens is True"),
        (_counted(completion_tokens=3, total_tokens=2), "usage.total_tokens is 2"),
        (_counted(completion_tokens=3, total_tokens=2**70), "usage.total_tokens is 118"),
    ],
)
def test_an_answer_that_is_none_is_shown(answer, said):
    with pytest.raises(PolicyError, match=said):
        replies(lambda body: answer, "a")


def test_nobody_there_is_an_error(monkeypatch):
    monkeypatch.setattr(endpoints.time, "sleep", lambda seconds: None)
    with httpx.Client() as client:
        policy = ChatPolicy(client, Endpoint("http://127.0.0.1:9/v1", "m"), Sampling(), SHORT)
        with pytest.raises(PolicyError, match=r"http://127.0.0.1:9/v1.* does not answer"):
            policy.reply([Message("user", "a")])


@each_row("given", ["http://localhost/v1", "http:///v1#m", "localhost#", "file://localhost/v1#m"])
def test_an_endpoint_needs_a_host_and_a_model(given):
    with pytest.raises(ValueError, match="must be http"):
        Endpoint.read(given, "--policy")


def test_what_cannot_be_sent_is_sent_with_question_marks():
    said, (body,), _ = replies(lambda body: "x", "half \ud800 of a pair")
    assert said == [Reply("x", "stop")]
    assert body["messages"][0]["content"] == "half ? of a pair"


def test_an_answer_that_is_too_deep_is_none():
    deep = []
    for _ in range(900):
        deep = [deep]
    with pytest.raises(PolicyError, match="answers 200"):
        replies(lambda body: (200, {"choices": deep}), "a")
