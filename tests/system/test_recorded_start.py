"""A run that begins with recorded conversations, and settings of it that cannot be honoured."""

import json
import math

import pytest

from ale_jax.command_line import read_config
from ale_jax.config.recorded import PreferenceData, RecordedData
from ale_jax.monitor.evaluations import read_summary
from ale_jax.monitor.events import read_events
from ale_jax.monitor.metrics import read_metrics
from ale_jax.recorded.export_command import export_episodes
from ale_jax.recorded.files import read_all
from ale_jax.recorded.formats import read_record
from tests.recorded.made import said, write
from tests.system.configs import smoke_config
from tests.system.whole_runs import SYNCHRONOUS, run_here

DATA = RecordedData(name="made", files="made.jsonl")
PAIRS = PreferenceData(name="made", files="made.jsonl")
ARITHMETIC = [
    "--config.worlds.train=({'world':'countdown','families':('countdown3',)},)",
    "--config.worlds.held_out=()",
    "--config.eval.held_out_tasks=0",
]


def talk(number):
    task = {"role": "user", "content": f"Make {number} of 3 and 4."}
    return {"messages": [task, said(f"3 + {number - 3}")], "reward": number % 2}


def pair(number):
    """A right answer is preferred to a wrong one."""
    messages = talk(number)["messages"]
    return {"prompt": messages[:1], "chosen": messages[1:], "rejected": said("no")}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run's folder, whose warm start has two passes over 30 conversations, and then two over ten
    pairs, and what it said."""
    folder = tmp_path_factory.mktemp("recorded")
    write(folder / "odd.jsonl", *map(talk, range(60)))
    write(folder / "all.jsonl", *map(talk, range(60, 90)))
    write(folder / "pairs.jsonl", *map(pair, range(90, 100)))
    data = (
        "({'name': 'odd', 'files': 'odd.jsonl', 'min_reward': 1.0, 'ratio': 3},"
        " {'name': 'all', 'files': 'all.jsonl'})"
    )
    said = run_here(
        folder / "run",
        "auto",
        *(*ARITHMETIC, *SYNCHRONOUS, "--config.rl.steps=1", f"--config.worlds.folder={folder}"),
        *(f"--config.warm_start.data={data}", "--config.warm_start.max_steps=50"),
        *("--config.warm_start.epochs=2", "--config.warm_start.held_out_share=0.2"),
        *("--config.warm_start.target_success=1.0", "--config.warm_start.rows_per_step=1"),
        *("--config.warm_start.probe_every=2", "--config.preferences.measure_every=1"),
        "--config.preferences.data=({'name': 'right', 'files': 'pairs.jsonl'},)",
        *("--config.preferences.pairs_per_step=4", "--config.preferences.epochs=2"),
        *("--config.preferences.held_out_share=0.2", "--config.preferences.beta=0.5"),
        *("--config.preferences_optimizer.learning_rate=0.001",),
        "--config.agent.record_episodes=True",
    )
    return folder / "run", said


@pytest.mark.heavy
def test_it_ends_with_the_epochs_and_claims_no_success(run):
    workdir, said = run
    lines = [
        line for line in read_metrics(workdir / "metrics.jsonl").records if line["phase"] == "sft"
    ]
    losses = [line["held_out_loss"] for line in lines]
    assert losses[-1] < losses[0]
    assert all("probe_success" not in line for line in lines)
    assert {"held_out_loss/odd", "held_out_loss/all"} <= lines[0].keys()
    (ended,) = (
        e for e in read_events(workdir / "events.jsonl").records if e.kind == "warm_start_ended"
    )
    updates = lines[-1]["step"]
    assert ended.detail == f"epochs 2 are over after {updates} updates" and updates < 50
    assert f"warm start: {updates} steps" in said  # as many as the learning rate's schedule has


@pytest.mark.heavy
def test_it_says_what_became_of_each_set(run):
    workdir, said = run
    told = [
        e.detail for e in read_events(workdir / "events.jsonl").records if e.kind == "recorded_data"
    ]
    assert "odd: 60 records: " in told[0] and "30 dropped (30 below min_reward)" in told[0]
    assert "all: 30 records: " in told[1] and ", 0 dropped; 30 replies" in told[1]
    assert "recorded data: odd: 60 records" in said


@pytest.mark.heavy
def test_after_that_it_learns_from_pairs(run):
    workdir, said = run
    lines = read_metrics(workdir / "metrics.jsonl").records
    phases = [line["phase"] for line in lines]
    assert phases == sorted(phases, key=["sft", "dpo", "rl"].index)
    pairs = [line for line in lines if line["phase"] == "dpo"]
    first, last = pairs[0], pairs[-1]
    assert abs(first["loss"] - math.log(2)) < 1e-3 > abs(first["margin"])  # it is the reference
    assert last["held_out_loss/right"] < first["held_out_loss/right"] < math.log(2)
    events = read_events(workdir / "events.jsonl").records
    told = {e.kind: e.detail for e in events if e.kind in ("recorded_data", "preferences_ended")}
    assert told["preferences_ended"] == f"epochs 2 are over after {last['step']} updates"
    assert "right: 10 records: " in told["recorded_data"] and ", 0 dropped" in said


@pytest.mark.heavy
def test_the_episodes_of_its_step_are_exported_whole(run, tmp_path):
    workdir, _ = run
    out = tmp_path / "out"
    assert export_episodes(workdir / "episodes", "messages", out) == 3 * 2  # groups, members
    lines = (workdir / "episodes" / "train_1" / "episodes.jsonl").read_text().splitlines()
    data = RecordedData(name="x", files=f"{out}/*")
    read = [told for _, told in read_all(data, "", read_record)]
    assert read == [read_record(json.loads(line)) for line in lines]
    assert [each.num_replies for each in read] == [json.loads(line)["turns"] for line in lines]
    assert {each.item[1] for each in read} == {"countdown3"} and all(e.as_written for e in read)


@pytest.mark.heavy
def test_the_rest_of_the_run_is_as_any(run):
    workdir, _ = run
    summary = read_summary(workdir / "summary.json")
    assert summary.rl_steps == 1 and summary.warm_start_steps > 2
    assert (workdir / "report.html").exists()
    assert not (workdir / "timeline.json").exists(), "nobody has asked for it"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": (DATA, DATA)}, "names 'made' twice"),
        ({"data": (DATA,), "max_steps": 0}, "needs warm_start.max_steps above 0"),
        ({"data": (), "epochs": 2}, "epochs 2 is about warm_start.data"),
        ({"data": (), "held_out_share": 0.1}, "held_out_share 0.1 is about warm_start.data"),
        ({"data": (DATA,), "patience": 1}, "patience 1 waits for the loss on what is held out"),
        ({"data": (DATA,), "target_success": 0.3}, "target_success 0.3 is about oracles"),
        ({"data": (DATA,), "noisy_share": 0.5}, "noisy_share 0.5 is about oracles"),
    ],
)
def test_what_would_do_nothing_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        smoke_config(warm_start={"target_success": 1.0} | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": (PAIRS, PAIRS)}, r"preferences\.data names 'made' twice"),
        ({"beta": 0.2}, r"preferences\.beta 0\.2 is about preferences\.data, which is empty"),
        ({"data": (PAIRS,), "patience": 2}, r"preferences\.patience 2 waits for the loss"),
    ],
)
def test_preferences_that_would_do_nothing_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        smoke_config(preferences=changes)


def test_with_worlds_that_are_named_both_are_learned():
    config = smoke_config()
    domains = config.worlds.train
    warm = {"data": (DATA,), "domains": domains, "target_success": 0.3}
    assert smoke_config(warm_start=warm).demonstrated == domains
    assert smoke_config(warm_start={"data": (DATA,), "target_success": 1.0}).demonstrated == ()


@pytest.mark.parametrize("fields", [{"name": "a"}, {"files": "a"}])
def test_data_without_a_name_or_files_is_refused(fields):
    with pytest.raises(ValueError, match=r"data has no (name|files)"):
        RecordedData(**fields)


def test_files_are_looked_for_beside_the_config(tmp_path):
    text = (
        "from ale_jax.configs import smoke\n"
        "def get_config():\n"
        "    c = smoke.get_config()\n"
        "    c.warm_start.data = ({'name': 'a', 'files': 'traj/*.jsonl'},)\n"
        "    c.warm_start.target_success = 1.0\n"
        "    return c\n"
    )
    (tmp_path / "own.py").write_text(text)
    assert read_config(str(tmp_path / "own.py"), [])["worlds"]["folder"] == str(tmp_path)
