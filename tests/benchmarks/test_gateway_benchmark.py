"""The gateway's benchmark: it measures the real gateway, and finds what is wrong with a bad one."""

import collections
import dataclasses
import itertools
import json
import random

import pytest

from ale_jax.gateway import token_tree
from ale_jax.gateway.api import openai_chat
from ale_jax.gateway.requests import ApiError
from ale_jax.gateway.token_tree import Branch
from benchmarks.gateway import __main__ as program
from benchmarks.gateway import branches, fuzz, overhead
from benchmarks.gateway.agents import MOVES, Agents
from benchmarks.gateway.fuzz_requests import CHAT, SHARES, Drawn, RequestMaker, usual
from benchmarks.gateway.plan import QUICK
from benchmarks.gateway.report import REQUIRED
from benchmarks.gateway.scripted import Stage, small_tokenizer

FEW = dataclasses.replace(QUICK, fuzz_requests=60, branch_conversations=12, overhead_calls=2)


@pytest.fixture(scope="module")
def stage():
    return Stage(small_tokenizer())


@pytest.fixture
def fuzzed():
    with fuzz.Fuzzed() as fuzzed:
        yield fuzzed


def ask(fuzzed, caller=0, owner=0, **changes):
    """Judges an answer to one episode's call that tells a secret of another one."""
    connection = fuzz.Connection(fuzzed.url)
    body = usual(CHAT, f"I am {fuzzed.secrets[owner]}", random.Random(1)) | changes
    drawn = Drawn("usual", CHAT, json.dumps(body).encode(), caller)
    fuzzed.judge(0, drawn, connection)
    connection.close()
    return {name: count for name, count in fuzzed.counts.items() if count}


def test_a_request_depends_on_its_number_only(fuzzed):
    makers = [RequestMaker(fuzzed.document, fuzzed.secrets, 0) for _ in range(2)]
    ours, theirs = ([maker.draw(number, []) for number in range(300)] for maker in makers)
    assert ours == theirs
    kinds = {drawn.kind for drawn in ours}
    assert kinds >= {*SHARES} - {"huge", "many"}
    assert {drawn.path for drawn in ours} == {*fuzzed.document["paths"]} - {"/v1/models"}


def test_the_gateway_stands_some_hundred_hostile_requests():
    found = fuzz.measure(FEW)
    assert found["fuzz_faults"] == []
    assert found["fuzz_own_secrets_told"] > 0, "a leak would be seen"


def test_a_secret_of_another_episode_is_a_leak(fuzzed):
    assert ask(fuzzed) == {"own": 1}
    assert ask(fuzzed, owner=1) == {"own": 1, "leaks": 1}
    assert fuzzed.faults[0]["what"] == "secrets of [1]"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_fails_is_counted(fuzzed, monkeypatch, stream):
    def fail(*_):
        raise ApiError(503, "no")

    monkeypatch.setattr("ale_jax.gateway.episode.GatewayEpisode.answer", fail)
    found = ask(fuzzed, stream=stream)
    assert found.pop("own", 0) == stream, "what was streamed before had been told"
    assert found == {"5xx": 1}


def test_a_crash_and_a_broken_stream_are_counted(fuzzed, monkeypatch):
    def crash(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(openai_chat, "completion", crash)
    monkeypatch.setattr(openai_chat, "chunk", crash)
    assert ask(fuzzed, stream=False) == {"5xx": 1, "not_json": 1}
    assert ask(fuzzed, stream=True) == {"5xx": 1, "not_json": 1, "broken": 1}


@pytest.mark.parametrize(
    ("body", "statuses"),
    [
        (b'{"error": {"code": 500}}', [500]),
        (b'data: {"x": 1}\n\ndata: {"error": {"code": 503}}\n\ndata: [DONE]\n\n', [0, 503]),
        (b'event: error\ndata: {"type": "error", "error": {"type": "api_error"}}\n\n', [500]),
        (b'event: error\ndata: {"type": "error", "code": "410"}\n\n', [410]),
        (b'{"choices": []}', [0]),
    ],
)
def test_errors_are_read_in_the_shape_of_every_api(body, statuses):
    assert [fuzz._status_of(event) for event in fuzz.events(body)] == statuses


@pytest.mark.parametrize(
    "body", [b"Internal Server Error", b'{"a": NaN}', b'data: {"a":\n\n', b"\xff"]
)
def test_what_is_no_json_is_seen(body):
    with pytest.raises(ValueError):
        list(fuzz.events(body))


def play(stage, episodes=8):
    total = collections.Counter()
    for number in range(episodes):
        agents = Agents(stage, f"test/{number}")
        agents.play(branches.MOVES)
        total += branches.account(stage, agents)
    return total


def test_every_sampled_token_is_delivered_once(stage):
    found = play(stage)
    assert (found["lost"], found["foreign"], found["misread"]) == (0, 0, 0)
    assert found["tokens"] > 1000 and found["forks"] and found["edited"] and found["lost_calls"]


def test_every_move_is_made():
    found = branches.measure(FEW)
    assert {*found["branches_moves"]} == {*MOVES, "given"}


def test_a_tree_that_trains_on_shared_replies_again_is_found_out(stage, monkeypatch):
    def shares_nothing(leaves):
        return [Branch(tuple(leaf.path()), 0) for leaf in leaves]

    monkeypatch.setattr(token_tree, "_without_repeats", shares_nothing)
    found = play(stage)
    assert found["foreign"] > 0 and found["lost"] == 0


def test_a_tree_that_forgets_branches_is_found_out(stage, monkeypatch):
    without_repeats = token_tree._without_repeats
    monkeypatch.setattr(
        token_tree, "_without_repeats", lambda leaves: itertools.islice(without_repeats(leaves), 1)
    )
    found = play(stage)
    assert found["lost"] > 0 and found["foreign"] == 0


def test_a_tree_that_does_not_read_what_was_edited_is_found_out(stage, monkeypatch):
    def of_roles(start, messages):
        return list(itertools.accumulate((each.role.encode() for each in messages), initial=start))[
            1:
        ]

    monkeypatch.setattr(token_tree, "path_keys", of_roles)
    found = play(stage)
    assert found["misread"] > 0


def test_calls_are_timed_in_another_process():
    found = overhead.measure(FEW)
    for load in overhead.loads(FEW.pause_s):
        p50, p99 = (found[f"{load.name}_{p}_{load.clients}"] for p in ("p50", "p99"))
        assert 0 < p50 <= p99
        assert found[f"{load.name}_p50_{load.clients}_rounds"] == [p50]


def test_the_last_line_is_one_json_object_with_all_figures(capsys, tmp_path):
    out = tmp_path / "made" / "gateway.json"
    assert program.main(["--quick", "--only=branches", f"--out={out}"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result == json.loads(out.read_text())
    assert {*REQUIRED} <= result.keys() and result["failures"] == {}
    assert result["branches_lost_tokens"] == 0 and result["fuzz_5xx"] is None
    assert {"command", "hardware", "versions"} <= result.keys()


def test_a_part_that_cannot_be_measured_is_told_and_fails(capsys, monkeypatch):
    monkeypatch.setattr(branches, "measure", lambda plan: 1 / 0)
    assert program.main(["--quick", "--only=branches"]) == 1
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "ZeroDivisionError" in result["failures"]["branches"]
