"""Where training groups start, with real sandboxes to replay in: rollback, anchors, refusals."""

import dataclasses
import functools
import json

import numpy as np
import pytest

from ale_jax.agent.tools import bash, finish, render_tool_call
from ale_jax.config.resampling import ResamplingHypers
from ale_jax.data.experts import Expert
from ale_jax.envs.shell.families import generate
from ale_jax.records import EpisodeKey, RolloutRequest, Task
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.status import Status
from ale_jax.system.resampling import DIVERGED_ONCE, LATEST, Resampler
from tests.system.conftest import SPEC
from tests.system.scripted_rollouts import Rollouts, oracle_script

TASK = Task("trail", 5, "train")
CHUNKS = len(generate(TASK.family, TASK.item).oracle)
SIZE = 4


@pytest.fixture(scope="module")
def rollouts(runtime_name):
    runtime = pick_runtime(runtime_name, SPEC)
    rollouts = Rollouts(functools.partial(runtime.start, SPEC, {}))
    yield rollouts
    rollouts.close()


@pytest.fixture
def events():
    return []


def resampler_of(events, state=None, **hypers):
    def record(kind, detail, **fields):
        events.append({"kind": kind, "detail": detail} | fields)

    return Resampler(ResamplingHypers(**hypers), lambda number: TASK, SIZE, 0, record, state)


def oracle(rollouts):
    return Expert.of(rollouts.play(RolloutRequest(EpisodeKey("oracle", 0, 0, TASK))))


def taught(events, rollouts, **hypers):
    """A resampler that knows the oracle's way."""
    resampler = resampler_of(events, **hypers)
    resampler.admit([oracle(rollouts)], rollouts.replay)
    return resampler


def start_of(requests):
    (start,) = {each.key.num_prefix_turns for each in requests}
    return start


WRONG = [render_tool_call(finish("wrong"))] * CHUNKS


def test_rollback_reaches_the_beginning_chunk_by_chunk(rollouts, events):
    assert CHUNKS >= 3
    resampler = taught(events, rollouts, scheme="rollback")
    starts = []
    for step in range(CHUNKS + 1):
        requests = resampler.assign(step)
        starts.append(start_of(requests))
        group = rollouts.group(step, requests, version=step)
        assert [t.episode.reward for t in group.members] == [1.0] * SIZE
        assert {t.episode.turns for t in group.members} == {CHUNKS - starts[-1]}
        resampler.learn([group], step, rollouts.replay)
    assert starts == [*range(CHUNKS - 1, -1, -1), 0]
    assert not events


def test_a_start_is_left_when_enough_successes_say_so(rollouts, events):
    resampler = taught(events, rollouts, scheme="rollback", threshold=0.4)
    last = CHUNKS - 1
    lost = rollouts.group(0, resampler.assign(0), WRONG)
    resampler.learn([lost], 0, rollouts.replay)
    won = [rollouts.group(g, resampler.assign(g)) for g in (1, 2)]
    resampler.learn(won[:1], 1, rollouts.replay)
    # 4 of 8: the interval begins at 0.215. The next 4 make it 8 of 12, and 0.391: not yet.
    assert start_of(resampler.assign(3)) == last
    resampler.learn(won[1:], 2, rollouts.replay)
    assert start_of(resampler.assign(4)) == last
    resampler.learn([rollouts.group(3, resampler.assign(3))], 3, rollouts.replay)  # 12 of 16: 0.505
    assert start_of(resampler.assign(5)) == last - 1


def test_a_group_under_way_keeps_its_start_and_its_members_share_it(rollouts, events):
    resampler = taught(events, rollouts, scheme="rollback")
    early = resampler.assign(0)
    resampler.learn([rollouts.group(1, resampler.assign(1))], 0, rollouts.replay)
    assert start_of(resampler.assign(2)) == CHUNKS - 2
    assert resampler.assign(0) == early and start_of(early) == CHUNKS - 1
    assert len({each.prefix for each in early}) == 1
    for each in early:
        assert each.prefix_turns == resampler.experts.get(TASK).turns[: CHUNKS - 1]


def test_parallel_anchors_are_groups_of_one_task_and_the_first_starts_at_the_beginning(
    rollouts, events
):
    resampler = taught(events, rollouts, scheme="parallel", anchors=3)
    starts = [start_of(resampler.assign(group)) for group in range(6)]
    assert starts == [0, (CHUNKS - 1) // 2, CHUNKS - 1] * 2
    drawn = taught(events, rollouts, scheme="parallel", anchors=3, anchor_choice="random")
    for block in range(5):
        first, *others = [start_of(drawn.assign(3 * block + anchor)) for anchor in range(3)]
        assert first == 0 and len(set(others)) == 2 and 0 not in others


def test_anchors_number_of_groups_in_a_row_share_a_task():
    hypers = ResamplingHypers(scheme="parallel", anchors=3)
    resampler = Resampler(hypers, lambda number: Task("trail", number, "train"), SIZE, 0, None)
    assert [resampler.assign(g)[0].key.task.item for g in range(7)] == [0, 0, 0, 1, 1, 1, 2]


def test_without_a_scheme_or_an_expert_everything_starts_at_the_beginning(events):
    for scheme in ("none", "rollback", "parallel"):
        resampler = resampler_of(events, scheme=scheme)
        assert [start_of(resampler.assign(group)) for group in range(4)] == [0] * 4


def test_own_successes_become_experts_after_a_replay(rollouts, events):
    resampler = resampler_of(events, scheme="rollback")
    resampler.learn([rollouts.group(0, resampler.assign(0))], 0, rollouts.replay)
    assert len(resampler.experts) == 1 and not events
    assert start_of(resampler.assign(1)) == CHUNKS - 1


def test_a_success_whose_replay_diverges_is_refused_by_name(rollouts, events):
    resampler = resampler_of(events, scheme="rollback")
    chance = [render_tool_call(bash("echo $RANDOM $RANDOM $RANDOM")), *oracle_script(TASK)]
    group = rollouts.group(0, resampler.assign(0), chance)
    assert [t.episode.reward for t in group.members] == [1.0] * SIZE
    resampler.learn([group], 0, rollouts.replay)
    assert len(resampler.experts) == 0
    (refused,) = events
    assert refused["kind"] == "expert_refused"
    assert (refused["family"], refused["item"]) == ("trail", 5)
    assert "trail 5 could not be replayed" in refused["detail"] and "turn 2" in refused["detail"]
    assert start_of(resampler.assign(1)) == 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"episode": {"reward": 0.5}}, "it earned 0.5 where it had earned 1"),
        ({"rejected": (Status.REPLAY_DIVERGED,)}, DIVERGED_ONCE),
    ],
)
def test_an_expert_whose_replay_earns_less_or_diverged_once_is_refused(
    rollouts, events, change, why
):
    def replay(requests):
        (played,) = rollouts.replay(requests)
        episode = dataclasses.replace(played.episode, **change.get("episode", {}))
        rejected = change.get("rejected", ())
        return [dataclasses.replace(played, episode=episode, rejected=rejected)]

    resampler = resampler_of(events, scheme="rollback")
    resampler.admit([oracle(rollouts)], replay)
    assert len(resampler.experts) == 0
    assert [event["detail"].endswith(f"could not be replayed: {why}") for event in events] == [True]


def test_an_expert_that_diverges_later_is_one_no_longer(rollouts, events):
    resampler = taught(events, rollouts, scheme="rollback")
    request = resampler.assign(0)[0]
    seen = (*request.prefix.seen[:-1], "something else")
    prefix = dataclasses.replace(request.prefix, seen=seen)
    diverged = rollouts.play(dataclasses.replace(request, prefix=prefix))
    assert diverged.episode.status == Status.REPLAY_DIVERGED
    resampler.note(diverged)
    resampler.note(diverged)
    assert [e["kind"] for e in events] == ["expert_refused"]
    assert start_of(resampler.assign(1)) == 0
    assert start_of(resampler.assign(0)) == CHUNKS - 1  # under way: it ends as it began


def test_a_fork_without_a_success_is_imitated(rollouts, events):
    resampler = taught(events, rollouts, scheme="rollback", imitation_weight=0.5)
    expert, last = resampler.experts.get(TASK), CHUNKS - 1
    lost = rollouts.group(0, resampler.assign(0), WRONG)
    (sample,) = resampler.imitation([lost], gamma=0.9)
    assert sample.turns == expert.turns  # the prefix turns and the one that was to be played
    assert sample.num_prefix_turns == CHUNKS and len(sample.advantage_C) == 0
    np.testing.assert_allclose(sample.imitate_P[-1], 0.5)
    np.testing.assert_allclose(sample.imitate_P[0], 0.5 * 0.9**last, rtol=1e-6)
    won = rollouts.group(1, resampler.assign(1))
    mixed = dataclasses.replace(won, members=(*lost.members[:3], won.members[0]))
    assert resampler.imitation([won, mixed], gamma=0.9) == []
    from_start = resampler_of(events, scheme="rollback")
    failed = rollouts.group(0, from_start.assign(0), WRONG)
    assert from_start.imitation([failed], gamma=0.9) == []


def test_a_resumed_run_goes_on_where_it_was(rollouts, events):
    hypers = {"scheme": "rollback"}
    resampler = taught(events, rollouts, **hypers)
    for group in range(3):
        resampler.assign(group)
    resampler.learn([rollouts.group(0, resampler.assign(0))], 0, rollouts.replay)
    resampler.forget([1, 2])
    state = json.loads(json.dumps(resampler.snapshot([1, 2])()))
    again = resampler_of(events, state, **hypers)
    assert again.snapshot([1, 2])() == state
    for group in (1, 2, 3):  # two that were open, at the old start, and a new one
        mine, theirs = resampler.assign(group), again.assign(group)
        assert [a.key for a in mine] == [a.key for a in theirs]
        for a, b in zip(mine[0].prefix_turns, theirs[0].prefix_turns, strict=True):
            np.testing.assert_array_equal(a.action_ids, b.action_ids)
        assert mine[0].prefix == theirs[0].prefix
    assert [start_of(again.assign(g)) for g in (1, 2, 3)] == [CHUNKS - 1, CHUNKS - 1, CHUNKS - 2]


def test_a_group_that_is_used_twice_is_counted_once(rollouts, events):
    resampler = taught(events, rollouts, scheme="rollback")
    group = rollouts.group(0, resampler.assign(0))
    for step in range(2):
        resampler.learn([group], step, rollouts.replay)
    expert = resampler.experts.get(TASK)
    assert resampler.counts(expert, 1)[CHUNKS - 1] == (SIZE, SIZE)


def test_what_followed_another_expert_is_not_counted_for_this_one(rollouts, events):
    resampler = taught(events, rollouts, scheme="rollback")
    early = resampler.assign(0)
    script = oracle_script(TASK)
    script[0] = script[0].replace("cat ", "cat  ")  # another action, to the same end
    newer = rollouts.play(RolloutRequest(EpisodeKey("train", 9, 0, TASK)), script, version=1)
    resampler.admit([Expert.of(newer)], rollouts.replay)
    assert resampler.experts.get(TASK).turns[0].action_text == script[0]
    resampler.learn([rollouts.group(0, early, version=0)], 1, rollouts.replay)
    assert resampler.counts(resampler.experts.get(TASK), 1) == [(0, 0)] * CHUNKS
    assert start_of(resampler.assign(1)) == CHUNKS - 1


def test_another_expert_keeps_the_start_that_was_reached_and_what_is_known_of_shared_ones(
    rollouts, events
):
    resampler = taught(events, rollouts, scheme="rollback")
    for step in range(2):
        group = rollouts.group(step, resampler.assign(step))
        resampler.learn([group], step, rollouts.replay)
    assert start_of(resampler.assign(2)) == CHUNKS - 3
    script = oracle_script(TASK)
    script[CHUNKS - 2] = script[CHUNKS - 2].replace("cat ", "cat  ")
    newer = rollouts.play(RolloutRequest(EpisodeKey("train", 9, 0, TASK)), script, version=1)
    resampler.admit([Expert.of(newer)], rollouts.replay)
    expert = resampler.experts.get(TASK)
    assert expert.turns[CHUNKS - 2].action_text == script[CHUNKS - 2] != oracle_script(TASK)[-2]
    assert start_of(resampler.assign(3)) == CHUNKS - 3
    # Before its chunk CHUNKS - 2 it is where the other one was, and behind that it is not.
    assert resampler.counts(expert, 1)[CHUNKS - 2 :] == [(SIZE, SIZE), (0, 0)]


def test_what_began_later_says_nothing_of_success_from_the_beginning(rollouts, events):
    resampler = taught(events, rollouts, scheme="parallel", anchors=2)
    early, late = (resampler.assign(group) for group in range(2))
    groups = [rollouts.group(0, early, WRONG), rollouts.group(1, late)]
    resampler.learn(groups, 0, rollouts.replay)
    assert resampler.snapshot([])()["from_start"] == [False] * SIZE  # decides when rates fall
    figures = resampler.figures(groups, 0)
    assert (figures["success_from_start"], figures["success_resampled"]) == (0.0, 1.0)
    assert (figures["groups_resampled"], figures["prefix_turns_mean"]) == (1, (CHUNKS - 1) / 2)


def test_the_crucial_chunk_shows_in_the_counts(rollouts, events):
    """The policy plays the last chunk right, if it is asked for that one, and nothing else."""
    resampler = taught(events, rollouts, scheme="parallel", anchors=CHUNKS)
    for group in range(2 * CHUNKS):
        requests = resampler.assign(group)
        script = None if start_of(requests) == CHUNKS - 1 else WRONG
        played = rollouts.group(group, requests, script)
        resampler.learn([played], 0, rollouts.replay)
    (found,) = resampler.crucial(0)[TASK]
    assert (found.chunk, found.rate_before, found.rate_after) == (CHUNKS - 2, 0.0, 1.0)
    figures = resampler.figures([played], 0)
    assert figures["crucial_chunks"] == 1 and figures["experts"] == 1
    assert figures["success_resampled"] == 1.0 and "success_from_start" not in figures


def test_adaptive_starts_go_where_outcomes_differ_and_a_share_stays_at_the_beginning(
    rollouts, events
):
    resampler = taught(events, rollouts, scheme="adaptive", from_start=0.25, window=64)
    for step in range(12):  # the last chunk is learned, and nothing before it
        requests = resampler.assign(step)
        script = () if start_of(requests) == CHUNKS - 1 else (WRONG,)
        resampler.learn([rollouts.group(step, requests, *script)], step, rollouts.replay)
    starts = [start_of(resampler.assign(group)) for group in range(12, 412)]
    assert [starts[k] for k in range(3, 400, 4)] == [0] * 100
    drawn = [start for k, start in enumerate(starts) if k % 4 != 3]
    assert 0 < drawn.count(0) < 150  # all but the last chunk fail, so few of the others
    assert set(drawn) == set(range(CHUNKS))
    # Both kinds are far from 1/2 now, and a resumed run draws the same.
    resumed = resampler_of(
        events, json.loads(json.dumps(resampler.snapshot([])())), scheme="adaptive", window=64
    )
    assert [start_of(resumed.assign(group)) for group in range(12, 412)] == starts
    requests = [resampler.assign(group) for group in range(412, 416)]
    assert len({each[0].key.group for each in requests}) == 4


def test_what_is_imitated_fades_with_success_and_may_include_the_first_chunk(rollouts, events):
    options = {"scheme": "adaptive", "imitation_weight": 0.5, "window": 1000}
    plain = taught(events, rollouts, **options, from_start=1.0)
    lost = rollouts.group(0, plain.assign(0), WRONG)
    assert plain.imitation([lost], 0.9) == []
    first = taught(
        events, rollouts, **options, from_start=1.0, imitates_at_start=True, imitation_fades=True
    )
    lost = rollouts.group(0, first.assign(0), WRONG)
    weights = []
    for _ in range(2):
        (sample,) = first.imitation([lost], 0.9)
        assert sample.num_prefix_turns == 1 and sample.group == 0
        weights.append(float(sample.imitate_P[0]))
        won = [rollouts.group(g, first.assign(g)) for g in (1, 2)]
        first.learn(won, 0, rollouts.replay)
    # Of the unknown, half; after 8 of 8 successes, 1 of 10.
    np.testing.assert_allclose(weights, 0.5 * 0.9 ** (CHUNKS - 1) * np.array([0.5, 0.1]), rtol=5e-3)


def test_success_from_the_beginning_is_known_after_enough_episodes_also_without_a_scheme(
    rollouts, events
):
    resampler = resampler_of(events)
    for step in range(LATEST // SIZE):
        assert resampler.success_from_start() == 0.0
        script = () if step % 4 else (WRONG,)
        group = rollouts.group(step, resampler.assign(step), *script)
        resampler.learn([group], step, rollouts.replay)
    assert resampler.success_from_start() == 0.75
    resumed = resampler_of(events, json.loads(json.dumps(resampler.snapshot([])())))
    assert resumed.success_from_start() == 0.75


def test_an_expert_is_imitated_where_it_changes_the_measured_rates(rollouts, events):
    options = {"scheme": "rollback", "imitation_weight": 0.5, "window": 1000}
    resampler = taught(events, rollouts, **options, imitation="decisions")
    last, lost = CHUNKS - 1, None
    for group in range(5):  # 20 failures at the last chunk: enough to know its rate
        lost = rollouts.group(group, resampler.assign(group), WRONG)
        (sample,) = resampler.imitation([lost], gamma=0.9)
        assert not sample.imitate_P.any()
        resampler.learn([lost], 0, rollouts.replay)
    (sample,) = resampler.imitation([lost], gamma=0.9)
    assert sample.num_prefix_turns == CHUNKS
    rate = resampler._rates.rate(TASK.family, 1)
    assert rate < 0.1
    expected = [0.0] * last + [0.5 * (1 - rate)]
    np.testing.assert_allclose(sample.imitate_P, expected, rtol=1e-6)


def test_each_imitated_chunk_fades_by_its_own_rate_and_weighs_what_its_expert_earned(
    rollouts, events
):
    def replay(requests):
        (played,) = rollouts.replay(requests)
        return [
            dataclasses.replace(played, episode=dataclasses.replace(played.episode, reward=0.4))
        ]

    options = {"imitation_weight": 0.5, "imitation": "decisions", "imitation_fades": True}
    resampler = resampler_of(events, scheme="adaptive", from_start=0.0, **options)
    resampler.admit([dataclasses.replace(oracle(rollouts), reward=0.4)], replay)
    resampler._rates.record(TASK.family, CHUNKS, [False] * 16)  # 1 of 18
    resampler._rates.record(TASK.family, 1, [True] * 11 + [False] * 5)  # 12 of 18
    group = next(g for g in range(99) if start_of(resampler.assign(g)) == CHUNKS - 1)
    lost = rollouts.group(group, resampler.assign(group), WRONG)
    (sample,) = resampler.imitation([lost], gamma=0.9)
    changed = [(12 - 1) / 18 / (CHUNKS - 1)] * (CHUNKS - 1) + [6 / 18]
    fades = [17 / 18] + [1 / 2] * (CHUNKS - 2) + [6 / 18]
    expected = 0.5 * 0.4 * np.array(changed) * np.array(fades)
    np.testing.assert_allclose(sample.imitate_P, expected, rtol=1e-6)
