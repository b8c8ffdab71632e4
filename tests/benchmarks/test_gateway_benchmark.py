"""The gateway's benchmark: it measures the real gateway, and finds what is wrong with a bad one."""

import asyncio
import collections
import dataclasses
import itertools
import json
import random
import re

import numpy as np
import pytest

from ale_jax.config.model import ModelConfig
from ale_jax.gateway.api import openai_chat
from ale_jax.gateway.app import make_app
from ale_jax.gateway.custody import token_tree
from ale_jax.gateway.custody.calls import Branch
from ale_jax.gateway.episodes import Episodes
from ale_jax.gateway.messages import ChatMessage
from ale_jax.gateway.requests import ApiError, ChatRequest, SampleOptions
from ale_jax.gateway.server import served
from benchmarks.gateway import __main__ as program
from benchmarks.gateway import (
    branches,
    drift,
    families,
    fuzz,
    ids,
    load,
    masks,
    overhead,
    real,
    resent,
)
from benchmarks.gateway.agents import MOVES, Agents
from benchmarks.gateway.fuzz_requests import CHAT, SCALARS, SHARES, Drawn, RequestMaker, usual
from benchmarks.gateway.plan import QUICK
from benchmarks.gateway.report import REQUIRED
from benchmarks.gateway.scripted import Stage, small_tokenizer

pytestmark = pytest.mark.slow

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
    posts = {path for path, ways in fuzzed.document["paths"].items() if "post" in ways}
    assert {drawn.path for drawn in ours} == posts


def test_no_request_changes_what_others_are_made_of(fuzzed):
    maker, before = RequestMaker(fuzzed.document, fuzzed.secrets, 0), repr(SCALARS)
    for number in range(3_000):  # some change what they have put into themselves before
        maker.draw(number, [])
    assert repr(SCALARS) == before


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
    assert ask(fuzzed, stream=False) == {"5xx": 1}
    assert ask(fuzzed, stream=True) == {"5xx": 1, "broken": 1}


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
        playing = Agents(stage, f"test/{number}")
        playing.play(branches.MOVES)
        total += branches.account(stage, playing)
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
    for each in overhead.loads(FEW.pause_s):
        p50, p99 = (found[each.name(f"ms_{p}")] for p in ("p50", "p99"))
        assert 0 < p50 <= p99
        assert found[f"{each.name('ms_p50')}_rounds"] == [p50]
        # Conversations of 2 calls: 2 // 2 and one more for the one client, one for each of 64.
        assert found[each.name("calls_of_a_round")] == {1: 4, 64: 128}[each.clients]


@pytest.mark.parametrize(("pause_s", "rate"), [(0.0, 5), (1.0, 8)])
def test_the_rate_of_clients_that_pause_is_that_while_all_call(monkeypatch, pause_s, rate):
    timed = {"ms": [1.0] * 40, "seconds": 8.0, "client_seconds": [3.0, 4.0, 8.0]}
    monkeypatch.setattr(overhead, "in_process", lambda job: timed)
    monkeypatch.setattr(overhead, "loads", lambda _: [overhead.Load(3, pause_s=pause_s)])
    found = overhead.measure(FEW)
    kind = "paced_" if pause_s else ""
    assert found[f"overhead_{kind}calls_per_second_3"] == rate
    assert found[f"overhead_{kind}calls_of_a_round_3"] == 40


def test_a_client_is_timed_until_its_own_end():
    pause_s, stage, episodes = 0.02, Stage(small_tokenizer()), Episodes()
    policy = stage.saying(["I look."] * 100)
    tokens = [episodes.open(stage.episode(policy)) for _ in range(8)]
    with served(make_app(episodes, "policy")) as url:
        job = load.Job(url, tokens, 2, 4, overhead.FIRST, [], {"model": "policy"}, pause_s)
        found = asyncio.run(load.run(job))
    assert len(found["ms"]) == 8 * 4
    assert 0 < min(found["client_seconds"]) < max(found["client_seconds"]) <= found["seconds"]


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


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    """Our own tokenizer, as if npm had it."""
    folder = tmp_path_factory.mktemp("tokenizers")
    small_tokenizer().save(folder / "ours" / "package" / "models")
    return families.FamilyStage(
        dataclasses.replace(families.FAMILIES[0], package="@x/ours"), folder
    )


def drifted(family):
    return sum((drift.play(family, f"test/{n}") for n in range(8)), collections.Counter())


def test_sampled_ids_do_not_drift_and_those_rendered_anew_do(family):
    found = drifted(family)
    assert found["changed"] == 0 < found["changed_anew"] < found["compared"]
    assert found["histories_changed"] <= found["histories"] and found["calls"] > 8


def test_masks_are_counted_of_what_a_grammar_allows(family):
    free, limited = (
        masks.held(family, masks.calls(family, random.Random(1), 6, limit), limit)
        for limit in (0, 9)
    )
    for found in (free, limited):
        assert 0 < found["masks"] < found["tokens"] * (1 - found["forced_share"])
        assert 0 < found["kilobytes"] < found["kilobytes_with_a_mask_for_each"]
    assert limited["masks"] > free["masks"], "near the end of a string fewer tokens are allowed"
    with pytest.raises(ApiError, match="doesn't satisfy the grammar"):
        masks.held(family, [family.sampled_ids("I look.")], 0)


def test_a_gateway_that_renders_anew_is_found_out(family, monkeypatch):
    monkeypatch.setattr(token_tree.TokenTree, "_parent", lambda self, keys: (None, 0))
    assert drifted(family)["changed"] > 0


def test_changed_tokens_are_counted_where_they_were_and_in_their_order():
    history = drift.History([])
    history.saw(np.array([1, 2]), np.array([7, 8, 9]))
    history.saw(np.array([1, 2, 7, 8, 9, 3]), np.array([5, 6]))
    same, shorter = np.array([1, 2, 7, 8, 9, 3, 5, 6, 4]), np.array([1, 2, 7, 8, 9])
    moved = np.array([1, 2, 70, 8, 9, 9, 3, 5, 6])
    assert [history.changed(each) for each in (same, shorter, moved)] == [0, 2, 3]
    assert [history.changed_in_order(each) for each in (same, shorter, moved)] == [0, 2, 1]


def test_a_token_may_end_where_the_tokenizer_would_go_on(family):
    whole, split = family.sampled_ids("three lines"), family.sampled_ids("three lines", [2])
    assert len(split) > len(whole)
    assert family.tokenizer.decode(split) == family.tokenizer.decode(whole) == "three lines"


def test_what_an_agent_was_sent_must_be_trained_on(stage):
    policy = stage.saying(["I look.", "Done."])
    episode, request = stage.episode(policy), ChatRequest("m", (ChatMessage("user", "task"),))
    for _ in range(2):
        (pending,) = episode.ask(request)
        episode.answer(pending, request)
    made, decode = episode.end("all"), stage.tokenizer.decode
    first, second = (len(each.ids) for each in policy.written)
    assert ids.delivered(made, policy.written, decode) == (0, 0)
    assert ids.delivered(made[:1], policy.written, decode) == (second, 0)
    assert ids.delivered(made, policy.written[1:], decode) == (0, first)
    policy.written[0] = dataclasses.replace(policy.written[0], version=1)
    assert ids.delivered(made, policy.written, decode) == (first, first)


def test_a_history_that_is_sent_again_is_read_only_where_the_engine_has_not_kept_it(monkeypatch):
    small = ModelConfig(
        width=32,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_width=16,
        mlp_width=48,
        max_positions=4096,
    )
    monkeypatch.setattr(resent, "quickstart_policy", small.policy_shape)
    sizes = {"max_sequence_length": 640, "pages": 160, "prefill_tokens": (128,)}
    monkeypatch.setattr(resent, "ENGINE", dataclasses.replace(resent.ENGINE, **sizes))
    found = resent.measure(dataclasses.replace(QUICK, resent_turns=3))
    kept, again, displaced, unknown = (found[f"resent_read_tokens_{way}"] for way in resent.WAYS)
    assert 0 < kept == again < displaced < unknown
    assert found["resent_ttft_ratio"] > 0


def test_what_a_policy_reads_and_writes_is_heard(stage):
    policy = stage.saying(["One.", "Two.", "Three."])
    heard = real.Heard(policy)
    for words in (["a", "b"], ["c"]):
        conversation = heard.open()
        for word in words:
            heard.reply(conversation, stage.ids_of(word), SampleOptions(), np.zeros(2), None)
        heard.end(conversation)
    said = list(heard.written())
    assert len(said) == len(policy.written) == 3
    for ours, theirs in zip(said, policy.written, strict=True):
        np.testing.assert_array_equal(ours.context, theirs.context)
        np.testing.assert_array_equal(ours.ids, theirs.ids)


@pytest.mark.parametrize("fence", ["bash", "sh", "mswea_bash_command"])
def test_a_client_is_told_which_blocks_are_commands(fence):
    setting, pattern = real.BLOCKS[-1].split("=", 1)
    assert setting == "model.action_regex"
    said = f"First:\n\n```{fence}\nls -l\n```\n\nIt shows:\n\n```text\na\n```"
    assert re.findall(pattern, said, re.DOTALL) == ["ls -l"]


def test_a_real_model_needs_its_weights(capsys):
    with pytest.raises(SystemExit):
        program.main(["--only=real"])
    assert "needs --weights=FILE" in capsys.readouterr().err
