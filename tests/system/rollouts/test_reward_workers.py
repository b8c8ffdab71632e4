"""Verdicts of a slow judge behind a real socket, on real threads, actors and gateways: what they
hold, and what becomes of them."""

import contextlib
import dataclasses
import itertools
import json
import os
import signal
import threading

import pytest

from ale_jax.config.build import build_domain
from ale_jax.config.engine import Sampling
from ale_jax.config.rollout import RolloutConfig
from ale_jax.errors import RolloutsFailed
from ale_jax.gateway.app import make_app
from ale_jax.gateway.server import served
from ale_jax.monitor.timeline import (
    EPISODES,
    REWARD_WORKERS,
    TIMELINE_FILE,
    VERDICT,
    Timeline,
    read_timeline,
)
from ale_jax.records import TRAIN, EpisodeKey, RolloutRequest, Task
from ale_jax.rollout.worker import RolloutWorker, WorkerSpec
from ale_jax.status import Status
from ale_jax.system.actors.actor_pool import ActorPool
from ale_jax.system.rollouts import breaker
from ale_jax.system.rollouts import workers as rollout_workers
from ale_jax.system.rollouts.policy_replicas import PolicyReplica, PolicyReplicas
from ale_jax.system.rollouts.pool import Load
from ale_jax.system.rollouts.threads import ThreadPool
from ale_jax.system.rollouts.workers import RolloutWorkers
from tests.system.conftest import SPEC
from tests.system.oracle_ledger import OracleLedger
from tests.system.rollouts.workers import (
    LIMIT_S,
    LIMITS,
    LONG,
    Events,
    next_result,
    run_until,
    wait_until,
)
from tests.worlds.bridges.test_judge import Endpoint, honest

PLACES, JUDGES, EPISODES_ASKED = 2, 1, 6


class Judge(Endpoint):
    """Says nothing before `gate` is set."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()
        self.says = self.slow

    def slow(self, asked):
        assert self.gate.wait(LIMIT_S)
        return honest(asked)


@pytest.fixture
def judge():
    with Judge() as server:
        yield server
        server.gate.set()


class ParisLedger(OracleLedger):
    """Its policy answers each question in the same way."""

    @property
    def stopped(self):
        return self._stopped

    def replies(self, name):
        return self._agents[name].replies

    def open(self, name, key, *rest):
        super().open(name, dataclasses.replace(key, task=Task("count", 1, TRAIN)), *rest)
        self._scripts[name] = ["It is Paris."]


@pytest.fixture
def asked(judge, tmp_path):
    """Keys of questions, and the domain that they are of."""
    rows = ({"id": i, "question": "Capital?", "answer": "Paris"} for i in range(EPISODES_ASKED))
    (tmp_path / "set.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"path": "set.jsonl", "prompt": "{question}", "answer": "answer", "eval_share": 0.0}
    options |= {"check": "judge", "judge": judge.name}
    domain = build_domain({"world": "rows", "options": options})
    tasks = [Task("set", i, TRAIN) for i in range(EPISODES_ASKED)]
    return [EpisodeKey(TRAIN, i, 0, task) for i, task in enumerate(tasks)], domain


@pytest.fixture
def start(asked, tmp_path):
    """Begins workers with PLACES places and some reward workers."""
    stack = contextlib.ExitStack()

    def begin(ledger, events, judges=JUDGES, by_threads=True, timeline=None):
        url = stack.enter_context(served(make_app(ledger.episodes, "oracle")))
        spec = WorkerSpec("none", SPEC, LIMITS, (asked[1],), str(tmp_path), judges=not judges)
        replicas = PolicyReplicas([PolicyReplica(ledger, url, lambda: 0)], timeline)
        if by_threads:
            pool = ThreadPool(RolloutWorker(spec), PLACES, events, judges)
        else:
            rollout = RolloutConfig(actors=1, episodes_per_actor=PLACES, reward_workers=judges)
            pool = ActorPool(rollout, spec, LONG.placement_seconds, events)
        workers = RolloutWorkers(pool, replicas, LONG, 1, events)
        stack.enter_context(workers)
        run_until(workers, lambda: workers.free_places == PLACES)
        return workers

    with stack:
        yield begin


@pytest.fixture(params=["ray", "threads"])
def by_threads(request):
    """Whether threads play and judge instead of actors."""
    if request.param == "ray":
        request.getfixturevalue("ray")
    return request.param == "threads"


def play_all(workers, keys):
    """Plays the interactions of episodes, one after another; none has its verdict before."""
    for key in keys:
        workers.submit(RolloutRequest(key), Sampling())
        run_until(workers, lambda: workers.free_places == PLACES)


def next_episode(workers):
    """The next result, also if an attempt leaves its place before."""
    found = []
    wait_until(lambda: found.append(next_result(workers)) or found[-1])
    return found[-1].episode


@pytest.mark.heavy
def test_a_slow_verdict_holds_no_place_and_comes_later(start, judge, asked, by_threads):
    (keys, _), ledger = asked, ParisLedger()
    workers = start(ledger, Events(), by_threads=by_threads)
    play_all(workers, keys)
    wait_until(lambda: judge.asked)
    assert ledger.asked == len(keys) and len(judge.asked) == JUDGES
    assert workers.loads["places"] == Load(PLACES, busy=0, waiting=0)
    assert workers.loads["reward_workers"] == Load(JUDGES, JUDGES, len(keys) - JUDGES)
    assert workers.counts.sandboxes_busy == 0
    assert ledger.stopped == set(ledger.opened)  # and so hold no slot of the engine
    assert f"and {len(keys)} for verdicts" in workers.waiting_for()
    judge.gate.set()
    played = [next_episode(workers) for _ in keys]
    assert [episode.key for episode in played] == keys  # the first one in the queue first
    for episode in played:
        assert (episode.status, episode.reward, episode.turns) == (Status.FINISHED, 1.0, 1)
        assert 0.0 < episode.verifier_seconds <= episode.env_seconds <= episode.seconds
    assert workers.loads["reward_workers"] == Load(JUDGES, 0, 0)
    assert ledger.open_conversations == 0


def test_without_reward_workers_it_holds_its_place(start, judge, asked):
    (keys, _), ledger = asked, ParisLedger()
    workers = start(ledger, Events(), judges=0)
    for key in keys[:PLACES]:
        workers.submit(RolloutRequest(key), Sampling())
    run_until(workers, lambda: len(judge.asked) == PLACES)
    assert workers.free_places == 0
    assert workers.loads["reward_workers"] == Load(0, 0, 0)
    judge.gate.set()
    assert [next_episode(workers).reward for _ in range(PLACES)] == [1.0] * PLACES


@pytest.mark.heavy
def test_what_nobody_wants_leaves_the_queue_and_its_verdict_is_not_read(
    start, judge, asked, by_threads
):
    (keys, _), ledger = asked, ParisLedger()
    workers = start(ledger, Events(), by_threads=by_threads)
    play_all(workers, keys[:4])
    wait_until(lambda: judge.asked)
    workers.abandon({0, 1, 3})
    run_until(workers, lambda: workers.loads["reward_workers"].waiting == 1)
    assert workers.loads["reward_workers"] == Load(JUDGES, 1, 1)
    judge.gate.set()
    assert next_episode(workers).key == keys[2]
    assert next_result(workers, 0.2) is None
    assert len(judge.asked) == 2 and ledger.open_conversations == 0
    assert workers.loads["reward_workers"] == Load(JUDGES, 0, 0)


def test_a_late_verdict_is_a_deadline_and_the_queue_is_nobodys_fault(
    start, judge, asked, monkeypatch
):
    monkeypatch.setattr(rollout_workers, "CHECK_S", 0.0)
    (keys, _), ledger, events = asked, ParisLedger(), Events()
    workers = start(ledger, events)
    play_all(workers, keys[:2])
    wait_until(lambda: judge.asked)
    workers._deadlines = dataclasses.replace(LONG, turn_seconds=0.1)
    run_until(workers, lambda: workers._cancelled)
    workers._deadlines = LONG
    judge.gate.set()
    assert sorted(next_episode(workers).key.group for _ in range(2)) == [0, 1]
    (failure,) = events.of("attempt_failed")
    assert (failure["status"], failure["group"], failure["retried"]) == ("deadline", 0, True)
    assert "took too long for its verdict" in failure["detail"]


def test_a_stuck_verdict_keeps_its_reward_worker_and_is_named(start, judge, asked, monkeypatch):
    monkeypatch.setattr(rollout_workers, "CHECK_S", 0.0)
    monkeypatch.setattr(rollout_workers, "CANCEL_S", 0.0)
    (keys, _), events = asked, Events()
    workers = start(ParisLedger(), events)
    play_all(workers, keys[:1])
    wait_until(lambda: judge.asked)
    workers._deadlines = dataclasses.replace(LONG, turn_seconds=0.1)
    with pytest.raises(RolloutsFailed, match=r"all 1 reward workers are taken by .*stuck"):
        next_result(workers, LIMIT_S)
    assert "keeps its reward worker" in events.of("thread_stuck")[0]["detail"]


def test_verdicts_of_a_killed_actor_are_played_again(ray, start, judge, asked):
    (keys, _), events = asked, Events()
    workers = start(ParisLedger(), events, by_threads=False)
    play_all(workers, keys[:3])
    wait_until(lambda: judge.asked)
    os.kill(events.of("actor_started")[0]["pid"], signal.SIGKILL)
    judge.gate.set()
    played = [next_episode(workers) for _ in range(3)]
    assert {each.key for each in played} == set(keys[:3])
    assert [each.reward for each in played] == [1.0] * 3
    assert [each["status"] for each in events.of("attempt_failed")] == ["actor_lost"] * 3


def test_closing_does_not_wait_for_verdicts(start, judge, asked):
    (keys, _), ledger = asked, ParisLedger()
    workers, times = start(ledger, Events()), []
    workers.note_times(times.append)
    play_all(workers, keys[:3])
    wait_until(lambda: judge.asked)
    workers.close()
    assert not judge.gate.is_set() and ledger.open_conversations == 0
    assert [each.status for each in times] == [Status.CANCELLED] * 3


def answers(judge, *before):
    """Lets the judge answer so, and then honestly."""
    left = iter(before)
    judge.says = lambda asked: next(left, None) or honest(asked)


@pytest.mark.heavy
def test_a_verdict_that_fails_is_asked_for_again_alone(start, judge, asked, by_threads):
    (keys, _), events, ledger = asked, Events(), ParisLedger()
    answers(judge, "no verdict")
    workers = start(ledger, events, by_threads=by_threads)
    workers.submit(RolloutRequest(keys[0]), Sampling())
    episode = next_episode(workers)
    assert (episode.status, episode.reward, episode.turns) == (Status.FINISHED, 1.0, 1)
    assert len(judge.asked) == 2 and len(ledger.opened) == 1 and not ledger.open_conversations
    (failure,) = events.of("attempt_failed")
    assert (failure["status"], failure["retried"]) == ("verifier_error", True)
    assert failure["detail"].startswith("its verdict alone is asked for again: VerifierError: ")
    assert workers.loads["reward_workers"] == Load(JUDGES, 0, 0)


def test_after_its_last_verdict_an_episode_is_played_again(start, judge, asked):
    (keys, _), events, ledger = asked, Events(), ParisLedger()
    answers(judge, "no verdict", "no verdict")
    workers = start(ledger, events)
    workers.submit(RolloutRequest(keys[0]), Sampling())
    assert next_episode(workers).reward == 1.0
    assert len(judge.asked) == 3 and len(ledger.opened) == 2
    assert ["alone" in each["detail"] for each in events.of("attempt_failed")] == [True, False]
    assert not workers._pool._worker._runner._unjudged, "nothing is left to judge"


def test_a_verdict_that_is_refused_for_good_is_not_asked_for_again(start, judge, asked):
    (keys, _), events, ledger = asked, Events(), ParisLedger()
    answers(judge, (401, "no key"))
    workers = start(ledger, events)
    workers.submit(RolloutRequest(keys[0]), Sampling())
    assert next_episode(workers).reward == 1.0
    assert len(judge.asked) == len(ledger.opened) == 2
    assert "VerdictRefusedError: judge http" in events.of("attempt_failed")[0]["detail"]


def test_what_nobody_wants_is_not_asked_for_again(start, judge, asked, monkeypatch):
    monkeypatch.setattr(breaker, "FIRST_BACKOFF_S", LIMIT_S)
    (keys, _), events, ledger = asked, Events(), ParisLedger()
    answers(judge, "no verdict")
    workers = start(ledger, events)
    workers.submit(RolloutRequest(keys[0]), Sampling())
    run_until(workers, lambda: events.of("attempt_failed"))
    assert "1 for verdicts" in workers.waiting_for()
    workers.abandon({0})
    assert next_result(workers, 0.2) is None
    assert ledger.open_conversations == 0 and not workers.waiting_for()
    wait_until(lambda: not workers._pool._worker._runner._unjudged)
    assert len(judge.asked) == 1


def test_verdicts_have_lanes_of_their_own_on_the_timeline(start, judge, asked, tmp_path):
    (keys, _), times = asked, []
    said = iter(["no verdict"])  # after which the verdict of the first one comes last
    judge.says = lambda asked: judge.slow(asked) and (next(said, None) or honest(asked))
    with Timeline(tmp_path) as timeline:
        workers = start(ParisLedger(), Events(), timeline=timeline)
        workers.note_times(times.append)
        play_all(workers, keys[:3])
        judge.gate.set()
        for _ in range(3):
            next_episode(workers)
    spans = read_timeline(tmp_path / TIMELINE_FILE).records
    verdicts = [each for each in spans if each.lane.process == REWARD_WORKERS]
    assert [(each.lane.number, each.name) for each in verdicts] == [(0, VERDICT)] * 4
    assert all(a.end <= b.start for a, b in itertools.pairwise(sorted(verdicts, key=by_start)))
    episodes = [each for each in spans if each.lane.process == EPISODES and each.name[:3] == "set"]
    assert len(episodes) == 3 and {each.lane.number for each in episodes} <= {0, 1}
    assert not any(each.name == VERDICT for each in spans if each.lane.process == EPISODES)
    judged = sum(span.end - span.start for span in verdicts)
    assert sum(each.verdict for each in times) == pytest.approx(judged, abs=0.1)
    assert all(each.ended <= each.begun + LIMIT_S for each in times)


def by_start(span):
    return span.start
