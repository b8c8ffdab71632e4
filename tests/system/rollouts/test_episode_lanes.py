"""Episodes on the timeline: one lane for each that is open at once."""

import pytest

from ale_jax.monitor.timeline import EPISODES, TIMELINE_FILE, Timeline, read_timeline
from ale_jax.records import EpisodeKey, Task
from ale_jax.status import Status
from ale_jax.system.rollouts.attempts import failed
from ale_jax.system.rollouts.episode_lanes import EpisodeLanes, episode_parts
from tests.monitor.traces import assert_nested, trace_events


def key(member, item=7):
    return EpisodeKey("train", 3, member, Task("trail", item, "train"))


@pytest.fixture
def workdir(tmp_path):
    """Of a timeline on which four episodes were recorded, at most three at once."""
    with Timeline(tmp_path) as timeline:
        lanes = EpisodeLanes(timeline)
        for member, name in enumerate("abc"):
            lanes.begin(name, key(member))
        lanes.end("b", (), failed(key(1), Status.SANDBOX_LOST, "gone"))
        lanes.begin("d", key(3, "\x1b[2J" + "long" * 50))
        for name in "acd":
            lanes.end(name, (), None)
    return tmp_path


def test_a_lane_is_used_again_when_its_episode_has_ended(workdir):
    spans = read_timeline(workdir / TIMELINE_FILE).records
    titled = [s for s in spans if s.lane.process == EPISODES and s.name.startswith("trail")]
    assert [span.lane.number for span in titled] == [1, 0, 2, 1]
    lanes = assert_nested(trace_events(workdir / TIMELINE_FILE))
    assert len(lanes) == 4, "the learner, and three places"


def test_an_episode_says_what_it_was_and_how_it_ended(workdir):
    told = [e for e in trace_events(workdir / TIMELINE_FILE) if "group" in e.get("args", ())]
    assert [each["args"]["member"] for each in told] == [1, 0, 2, 3]
    assert [each["args"]["status"] for each in told] == ["sandbox_lost", *["no result"] * 3]
    assert told[0]["name"] == "trail 7"
    assert len(told[3]["name"]) <= 80 and "\x1b" not in told[3]["name"]


def test_parts_fill_an_episode():
    replies = [(3.0, 4.0), (4.5, 6.0)]
    parts = episode_parts((1.0, 9.0), replies, verdict_seconds=2.0)
    assert [start for _, (start, _) in parts] == [1.0, *(end for _, (_, end) in parts[:-1])]
    assert parts[0] == ("sandbox start", (1.0, 3.0)) and parts[-1] == ("verdict", (7.0, 9.0))


def test_a_verdict_is_not_longer_than_what_follows_the_last_reply():
    parts = episode_parts((0.0, 5.0), [(1.0, 4.0)], verdict_seconds=3.0)
    assert parts[-2:] == [("reply", (1.0, 4.0)), ("verdict", (4.0, 5.0))]
    assert episode_parts((0.0, 5.0), [], 0.0) == [("sandbox start", (0.0, 5.0))]
