"""The report is whole, harmless, and there even when the run is not."""

import dataclasses
import html.parser
import json
import re
import time

import pytest

from ale_jax.files import write_json
from ale_jax.monitor.evaluations import write_summary
from ale_jax.monitor.events import NOTHING_TRAINED, EventLog
from ale_jax.monitor.report import main, write_report
from ale_jax.monitor.report_losses import MAX_DROPPED
from ale_jax.monitor.timeline import Lane, Span, Timeline
from ale_jax.monitor.trajectories import TrajectoryWriter, choose
from tests.monitor.fake_run import FAILED, OTHER, SOLVED, SUMMARY, write_run

pytestmark = pytest.mark.heavy

FILES = (
    "summary.json",
    "metrics.jsonl",
    "evaluations.json",
    "events.jsonl",
    "trajectories.jsonl",
    "config.json",
)
ATTACK = (
    "</pre></style></title>\"'><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 7 }}"
)


class Page(html.parser.HTMLParser):
    """Tags, attributes and text of a page, as a browser tells them apart."""

    def __init__(self, source):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data):
        self.text += data


def page(workdir):
    return Page(write_report(workdir).read_text())


def test_the_report_tells_the_run(tmp_path):
    text = " ".join(page(write_run(tmp_path)).text.split())
    # 23 and 98 of 120 in the trained families, 22 of 40 in the held-out one.
    for told in ("19 %→82 %", "55 %", "5,120", "413,221", "configs/quickstart.py", "10m55s"):
        assert told in text
    for told in ("mean reward 0.82", "0.30 → 0.93", "158 of 160"):
        assert told in text
    assert "Nothing was trained" not in text
    for told in (
        "find_largest",
        'for f in *.txt; do mv "$f"',
        "+0.92",
        "−0.88",
        "masked",
        "not trained on",
    ):
        assert told in text
    for told in ("1 × actor lost", "signal 9", "algo.gamma", "0.95", "supervised warm start"):
        assert told in text
    assert "Not everything" not in text


def test_the_report_needs_nothing_from_outside(tmp_path):
    source = write_report(write_run(tmp_path)).read_text()
    found = Page(source)
    assert not {"script", "link", "img", "iframe", "object", "base", "use"} & set(found.tags)
    assert not {"src", "href", "srcset", "action", "data"} & set(found.attributes)
    assert not re.search(r"url\(|@import|https?:", source)
    assert "default-src 'none'" in source


def test_hostile_text_stays_text(tmp_path):
    turn = dataclasses.replace(SOLVED.turns[0], action=ATTACK, prompt=ATTACK)
    with TrajectoryWriter(tmp_path) as trajectories:
        trajectories.write(dataclasses.replace(SOLVED, family=ATTACK, turns=(turn,)))
    with EventLog(tmp_path) as events:
        events.record(ATTACK, ATTACK, name=ATTACK)
    write_json(tmp_path / "config.json", {ATTACK: ATTACK})
    write_json(tmp_path / "summary.json", {ATTACK: 1})
    found = page(tmp_path)
    assert not {"script", "img"} & set(found.tags)
    assert not any(name.startswith("on") for name in found.attributes)
    assert found.tags.count("style") == found.tags.count("title") == 1
    # As text it is there: family, prompt, action, event's detail and field, config's name.
    assert found.text.count("{{ 7 * 7 }}") >= 6


def test_characters_that_act_are_shown_instead(tmp_path):
    turn = dataclasses.replace(SOLVED.turns[0], action="a\x1b[2Jb\u202ec\ud800d\x00e")
    with TrajectoryWriter(tmp_path) as trajectories:
        trajectories.write(dataclasses.replace(SOLVED, turns=(turn,)))
    assert "a␛[2Jb‹U+202E›c\ufffdd␀e" in page(tmp_path).text


def test_a_run_without_files_has_a_report_that_says_so(tmp_path):
    text = page(tmp_path).text
    for name in FILES:
        assert f"{name} is missing" in text


@pytest.mark.parametrize("name", FILES)
def test_each_file_may_be_missing_empty_or_damaged(tmp_path, name, capsys):
    write_run(tmp_path)
    (tmp_path / name).write_bytes(b"\x00\n")
    assert main([str(tmp_path)]) == 1
    assert name in capsys.readouterr().err
    assert name in page(tmp_path).text
    (tmp_path / name).write_bytes(b"")
    assert f"{name} is empty" in page(tmp_path).text
    (tmp_path / name).unlink()
    assert f"{name} is missing" in page(tmp_path).text


def test_groups_that_were_dropped_are_listed_if_there_are_any(tmp_path):
    assert "Dropped groups" not in page(write_run(tmp_path)).text
    with EventLog(tmp_path) as events:
        for group in range(MAX_DROPPED + 2):
            fields = {"reason": "failed", "family": "count", "statuses": "8 sandbox_lost"}
            events.record("group_dropped", "", group=1000 + group, item=4242, **fields)
        events.record("group_dropped", "by another version")
    table = page(tmp_path).text.partition("Dropped groups")[2].partition("Events")[0]
    assert f"the last {MAX_DROPPED}" in table
    assert "1002" not in table and "1003" in table and f"{1000 + MAX_DROPPED + 1}" in table
    assert table.count("8 sandbox_lost") == table.count("4242") == MAX_DROPPED - 1


def test_a_group_that_is_played_again_is_not_listed_as_dropped(tmp_path):
    write_run(tmp_path)
    with EventLog(tmp_path) as events:
        for group in (31, 32):
            events.record("group_dropped", "", group=group, family="count", item=8000 + group)
        events.record("group_reopened", "", group=32)
    table = page(tmp_path).text.partition("Dropped groups")[2].partition("Events")[0]
    assert "8031" in table and "8032" not in table


def test_limits_that_ended_episodes_and_a_rewritten_history_are_told(tmp_path):
    told = page(write_run(tmp_path)).text
    assert "that a limit ended" not in told and "rewrites its history" not in told
    steps = (
        {"truncated": 0.0, "trained_groups/log": 8, "stale_groups/script": 1},
        {"trained_groups/script": 9, "stale_groups/script": 2, "stale_groups/log": 1}
        | {"truncated": 0.5, "truncated/turn_limit": 0.125, "truncated/token_limit": 0.375},
    )
    lines = [{"phase": "rl", "step": n, "seconds": n} | each for n, each in enumerate(steps)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with EventLog(tmp_path) as events:
        events.record("history_rewritten", "100% of the replies", step=1)
    told = " ".join(page(tmp_path).text.split())
    assert "token limit18.8 % turn limit6.2 %" in told
    assert "script325.0 % log111.1 %" in told  # groups too old, of 12 and 9
    assert "The agent rewrites its history 100% of the replies" in told


def test_a_run_that_trained_nothing_says_so_and_why(tmp_path):
    write_summary(write_run(tmp_path), dataclasses.replace(SUMMARY, rl_steps_trained=0))
    with EventLog(tmp_path) as events:
        for why in ("5 steps in a row: too hard", "10 steps in a row: too hard"):
            events.record(NOTHING_TRAINED, why)
    (said,) = re.findall(
        r'aria-label="Nothing.*?</aside>', write_report(tmp_path).read_text(), re.S
    )
    assert "Nothing was trained: none of the 160 steps" in said
    assert "10 steps in a row" in said and "5 steps in a row" not in said


def test_a_timeline_is_shown_with_its_bubbles_if_there_is_one(tmp_path):
    assert "Bubbles" not in page(write_run(tmp_path)).text
    with Timeline(tmp_path) as timeline:
        at = time.monotonic()
        learner, engine, place = Lane("learner"), Lane("engines"), Lane("episodes")
        timeline.write(
            [Span(learner, "waiting", at, at + 30), Span(engine, "sampling", at, at + 10)]
        )
        timeline.write([Span(place, ATTACK, at, at + 30), Span(place, "verdict", at + 10, at + 30)])
        timeline.write([Span(learner, "update", at + 30, at + 40)])
    source = write_report(tmp_path).read_text()
    told = " ".join(Page(source).text.split())
    section = told.partition("Timeline")[2]
    assert "learner engine 0 place 0" in section and "alert" not in section
    # The learner waits 20 of 40 seconds for the verdict, the engine also 10 for the update.
    assert "judged, and episodes do nothing else50.0 %50.0 %" in section.replace(" % ", " %")
    assert "made the step0.0 %25.0 %" in section.replace(" % ", " %")
    assert source.count('<path class="lane-verdict"') == 3
    path = tmp_path / "timeline.json"
    path.rename(tmp_path / "timeline.earlier.json")
    Timeline(tmp_path).__exit__()
    assert section.partition("Episodes")[0] in " ".join(page(tmp_path).text.split())
    path.write_text(path.read_text() + "x\n")
    assert "timeline.json, line" in page(tmp_path).text


def test_a_cut_last_line_is_told(tmp_path):
    write_run(tmp_path)
    path = tmp_path / "events.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    assert "events.jsonl: line 7 is incomplete" in page(tmp_path).text


def test_extreme_numbers_do_not_break_the_report(tmp_path):
    lines = [
        {"phase": "rl", "step": 1, "seconds": 1e308, "success": -1e308, "time/waiting_s": 1e308},
        {"phase": "rl", "step": 2, "seconds": -1e308, "success": 1e308, "time/waiting_s": 1e308},
        {"phase": "rl", "step": 3, "seconds": 0, "loss": 5e-324, "staleness_counts": {"-9": 1}},
        {"phase": "rl", "step": 3, "seconds": 9, "loss": 0, "staleness_counts": {str(2**60): 2}},
        {"phase": "sft", "step": 3, "seconds": 9, "loss": None},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "Learning curve" in page(tmp_path).text


def test_a_deep_config_is_damage(tmp_path):
    (tmp_path / "config.json").write_text('{"a":' * 50 + "1" + "}" * 50)
    assert "nested deeper" in page(tmp_path).text


def test_the_command_writes_the_report(tmp_path, capsys):
    write_run(tmp_path)
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "report.html")


@pytest.mark.parametrize("content", ["no folder", "nothing", "another program's config.json"])
def test_the_command_writes_only_to_the_folder_of_a_run(tmp_path, capsys, content):
    folder = tmp_path / "folder"
    if content != "no folder":
        folder.mkdir()
    if content == "another program's config.json":
        (folder / "config.json").write_text("{}")
    before = sorted(tmp_path.rglob("*"))
    assert main([str(folder)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and str(folder) in err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_success_and_a_failure_of_one_group_come_first():
    late = dataclasses.replace(SOLVED, step=199, item=1)
    assert choose([FAILED, SOLVED, OTHER, late]) == [SOLVED, FAILED, OTHER]


def test_without_such_a_group_the_latest_of_each_outcome_comes():
    lonely = dataclasses.replace(FAILED, item=1)
    assert choose([lonely, SOLVED]) == [SOLVED, lonely]
    assert choose([SOLVED]) == [SOLVED]
    assert choose([]) == []
