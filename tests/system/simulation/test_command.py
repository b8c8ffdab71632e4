"""ale-jax simulate: what it prints rests on runs, and what it cannot honour it names."""

import dataclasses
import json
import re
from xml.etree import ElementTree

import pytest

from ale_jax.launch import main
from ale_jax.monitor.times import TimesWriter, read_times
from ale_jax.system.lending import Lending
from ale_jax.system.simulation import command, fit, predict, search
from ale_jax.system.simulation.engines import Engines
from ale_jax.system.simulation.observed import RunPart, timed_steps
from ale_jax.system.simulation.run import Setup, simulated
from ale_jax.system.simulation.sides import LentDevices
from ale_jax.system.simulation.world import Course, Crowding
from tests.system.configs import smoke_config

FEW = 160  # episodes of a simulation: no figure is needed to the percent
SMOKE = Setup(2, 2, 4, 2.0, alpha=1.0)  # the schedule of the smoke config


@pytest.fixture(autouse=True)
def _few_episodes(monkeypatch):
    monkeypatch.setattr(predict, "EPISODES", FEW)
    monkeypatch.setattr(predict, "MOST_ATTEMPTS", 0)


def course(key, chance):
    return Course(chance.uniform(5.0, 15.0))


def make_run(folder, setup, steps=30, seed=0, course=course, **rl):
    """Writes what simulate reads of a run."""
    config = smoke_config()
    changed = dataclasses.replace(config, rl=dataclasses.replace(config.rl, **rl))
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(changed.to_json()))
    times = simulated(setup, course, steps, seed)
    with TimesWriter(folder, clock=lambda: 0.0) as writer:
        for each in times.attempts:
            writer.attempt(dataclasses.replace(each, turns=3, tokens=20))
        for step in times.steps:
            writer.step(step)
    return folder


def said(capsys, *arguments):
    code = main(["ale-jax", "simulate", *arguments])
    captured = capsys.readouterr()
    assert (code, captured.err) == (0, "")
    return captured.out


def refused(capsys, *arguments):
    assert main(["ale-jax", "simulate", *arguments]) == 2
    return capsys.readouterr().err


def test_the_second_half_of_a_run_is_predicted_from_its_first(tmp_path, capsys):
    run = make_run(tmp_path / "run", SMOKE)
    out = said(capsys, f"--from={run}")
    assert "second half" in out and "error unknown" not in out
    (error,) = re.findall(r"\(([+-][\d.]+) ± [\d.]+%\)", out)
    assert abs(float(error)) < 10 and f"± {abs(float(error))}%" in out


def test_the_error_is_of_what_was_not_fitted(tmp_path, capsys):
    """Episodes of this run take twice as long from its half on."""

    def slower(key, chance):
        return Course(chance.uniform(5.0, 15.0) * (2.0 if key.group >= 30 else 1.0))

    run = make_run(tmp_path / "run", SMOKE, course=slower)
    (error,) = re.findall(r"\(([+-][\d.]+) ± [\d.]+%\)", said(capsys, f"--from={run}"))
    assert 60 < float(error) < 120


def test_a_run_is_checked_with_its_own_config(tmp_path, capsys):
    run = make_run(tmp_path / "a", SMOKE)
    other = make_run(tmp_path / "b", dataclasses.replace(SMOKE, alpha=0.0), seed=1, alpha=0.0)
    out = said(capsys, f"--from={run}", f"--check={other}")
    (row,) = [line for line in out.splitlines() if str(other)[:12] in line]
    figures = re.findall(r"([\d.]+) / ([\d.]+)", row)
    assert figures[3] == ("0.00", "0.00"), "a synchronous run has no age"
    assert "made beside episodes" not in out


def test_without_a_run_no_error_is_known(capsys):
    out = said(capsys, "--config=smoke", "--episode-seconds=10,20", "--update-seconds=5")
    assert "error unknown" in out and "name one by --check" in out and "±" not in out


def test_the_schedule_to_set_is_told(capsys):
    """Updates take as long as rollouts, so that whoever waits for neither is twice as fast."""
    arguments = "--config=smoke", "--episode-seconds=10,10.1", "--update-seconds=10", "--lost=0"
    out = said(capsys, *arguments, "--config.rl.alpha=0")
    *_, told = out.splitlines()
    assert "--config.rl.alpha=" in told and "--config.rl.alpha=0.0" not in told
    again = said(capsys, *arguments, *told.split())
    assert again.splitlines()[-1] == "No schedule can be told to be faster than the config's."


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ([], "--config is missing: name one, or a run by --from"),
        (["--from=nowhere"], "nowhere holds no run: check the folder"),
        (["--config=smoke", "--config.rl.max_uses=2"], "rl.max_uses 2 cannot be simulated: set it"),
        (["--config=smoke", "--config.rl.fill_queue"], "rl.fill_queue True cannot be simulated"),
        (["--config=smoke", "--episode-seconds=9"], "--episode-seconds=9 must be MEDIAN,P99"),
        (["--config=smoke", "--episode-seconds=9,1"], "--episode-seconds=9,1 must be MEDIAN,P99"),
        (["--config=smoke", "--update-seconds=-1"], "--update-seconds=-1 must be 0 or more"),
        (["--config=smoke", "--update-seconds=1e300"], "1e+300 must be 0 or more, and at most 864"),
        (["--config=smoke", "--episode-seconds=1,1e6"], "with 0 < MEDIAN <= P99 <= 86400"),
        (["--config=smoke", "--picture=a.png"], "--picture=a.png must end in .svg"),
        (["--config=smoke", f"--picture={__file__}/a.svg"], "a.svg cannot be written: name a file"),
        (["--config=smoke", "--lost=1"], "--lost=1 must be a share from 0 to below 1"),
    ],
)
def test_what_cannot_be_honoured_is_named(arguments, answer, capsys):
    assert answer in refused(capsys, *arguments)


def test_a_run_that_tells_too_little_is_refused(tmp_path, capsys):
    run = make_run(tmp_path / "run", SMOKE, steps=4)
    assert "has 3 steps beside its first one" in refused(capsys, f"--from={run}")
    assert "--lost has no use with --from" in refused(
        capsys, f"--from={make_run(tmp_path / 'long', SMOKE)}", "--lost=0.1"
    )
    (tmp_path / "long" / "config.json").write_text("{}")
    assert f"{tmp_path / 'long'} is of another" in refused(capsys, f"--from={tmp_path / 'long'}")
    (run / "times.jsonl").unlink()
    assert "has no times.jsonl" in refused(capsys, f"--from={run}")


def test_runs_with_other_devices_for_their_engines_are_refused(tmp_path, capsys):
    run = make_run(tmp_path / "run", SMOKE)
    changed = "--config.rollout.engine_devices=2"
    answer = f"rollout.engine_devices 2 cannot be predicted from {run}, which had 0"
    assert answer in refused(capsys, f"--from={run}", changed)
    assert answer in refused(capsys, "--config=smoke", f"--check={run}", changed)


def _apart(run, **rollout):
    """Says of a run that it had three engines on two devices each."""
    values = json.loads((run / "config.json").read_text())
    values["rollout"] |= {"engine_devices": 6, "devices_per_engine": 2, **rollout}
    (run / "config.json").write_text(json.dumps(values))
    return run


def test_lending_is_predicted_by_runs_with_the_same_devices(tmp_path, capsys):
    """Two devices learn, and may be lent four. One run never was, and the other says of each update
    whether it was, without naming its hardware."""
    h100s = "--config.hardware.chip=h100", "--config.hardware.devices=8"
    lends = "--config.rollout.lent_engines=2"
    plain = _apart(make_run(tmp_path / "plain", SMOKE))
    lent = dataclasses.replace(SMOKE, lent=LentDevices(Lending(3, 2, places=4), faster=3.0))
    lent = _apart(make_run(tmp_path / "lent", lent, seed=1), lent_engines=2)
    assert "how many devices learn beside these" in refused(capsys, f"--from={plain}", lends)
    out = said(capsys, f"--from={plain}", f"--check={lent}", lends, *h100s)
    assert "With lent devices it is taken to be 3 times as fast, in proportion" in out
    assert "updates lent, %" in " ".join(out.split())
    for source in (plain, lent):
        out = said(capsys, f"--from={source}", "--config.rollout.lent_engines=0", *h100s)
        assert "An update alone takes 2 s" in out and "lent devices" not in out


def test_only_what_was_measured_is_varied(tmp_path, capsys):
    """With four places and many groups ahead, always four episodes are in progress."""
    out = said(
        capsys, f"--from={make_run(tmp_path / 'run', dataclasses.replace(SMOKE, alpha=4.0))}"
    )
    assert "about equally many episodes were always in progress" in out
    rows = [line.split("│") for line in out.splitlines() if line.startswith("│")]
    assert {row[2].strip() for row in rows if len(row) > 8} == {"4"}


SVG = "{http://www.w3.org/2000/svg}"


def test_a_picture_shows_what_the_table_does(tmp_path, capsys):
    run = make_run(tmp_path / "run", SMOKE)
    picture = tmp_path / "new" / "picture.svg"
    out = said(capsys, f"--from={run}", f"--picture={picture}")
    root = ElementTree.parse(picture).getroot()
    told = [each.text for each in root.iter(f"{SVG}text")]
    rows = [each for each in told if each.startswith("alpha ")]
    assert 2 <= len(rows) <= 9 and rows[0] == "alpha 1, 4 places"
    (error,) = re.findall(r"steps per hour, predicted, ± ([\d.]+)%", "\n".join(told))
    assert f"± {error}%" in out
    whiskers = [each for each in root.iter(f"{SVG}path") if each.get("stroke") == "black"]
    assert len(whiskers) == len(rows)
    width = float(root.get("viewBox").split()[2])
    for bar in root.iter(f"{SVG}rect"):
        assert 0.0 <= float(bar.get("width")) <= width


def test_a_picture_without_a_run_has_no_error(tmp_path, capsys):
    picture = tmp_path / "picture.svg"
    said(capsys, "--config=smoke", f"--picture={picture}")
    assert "error unknown" in picture.read_text() and "±" not in picture.read_text()
    assert "must end in .svg" in refused(capsys, "--config=smoke", "--picture=a.png")


ENGINES = [
    *("--config=smoke", "--config.hardware.chip=v5e", "--config.hardware.devices=4"),
    "--config.rollout.devices_per_engine=1",
]


def test_several_engines_need_to_be_told_what_their_dispatches_cost(tmp_path, capsys):
    assert "each process has 4 engines" in refused(capsys, *ENGINES)
    assert "--dispatch=1 must be a share" in refused(capsys, *ENGINES, "--dispatch=1")
    assert "no use: each process" in refused(capsys, "--config=smoke", "--dispatch=0.1")
    per_engine = "--config.rollout.devices_per_engine=1"
    assert "depends on the machine" in refused(capsys, "--config=smoke", per_engine)
    free, dear = (said(capsys, *ENGINES, f"--dispatch={share}") for share in (0.0, 0.5))
    assert "Of 4 engines" in free and "(0.0% slower)" in free
    assert "(103.1% slower)" in dear  # a cycle of 1, 1.25, 1.6, 2.03 with 1 to 4 engines


def test_what_runs_do_not_tell_of_roles_is_refused(tmp_path, capsys):
    run = make_run(tmp_path / "run", SMOKE)
    source = f"--from={run}"
    assert "has no use: each process has one engine" in refused(capsys, source, "--dispatch=0.1")
    values = json.loads((run / "config.json").read_text())
    values["hardware"] |= {"chip": "v5e", "devices": 2, "devices_per_process": 1}
    (run / "config.json").write_text(json.dumps(values))
    changed = ("--config.hardware.devices=4",)
    assert "updates on 2 devices do not tell what they take on 4" in refused(
        capsys, source, *changed
    )


def test_reward_workers_are_predicted_by_runs_that_had_some(tmp_path):
    """Two places that play for 10 s and are judged for 20 s, by as many reward workers as the run
    had, or in their places."""

    def course(key, chance):
        return Course(10.0, verdict=20.0)

    setup = dataclasses.replace(SMOKE, reward_workers=8)
    run = make_run(tmp_path / "run", setup, course=course)
    times = read_times(run / "times.jsonl")
    assert {each.verdict for each in times.attempts if each.verdict} == {20.0}
    costs = fit.fitted([RunPart(times, timed_steps(times))])
    config = smoke_config()
    waits = predict.predict(config, costs).seconds_per_step
    rollout = dataclasses.replace(config.rollout, reward_workers=8)
    free = predict.predict(dataclasses.replace(config, rollout=rollout), costs).seconds_per_step
    assert waits == pytest.approx(30.0, rel=0.05)
    # Permits allow two steps at once, each of which takes 10 + 20 + 2 seconds.
    assert free == pytest.approx(16.0, rel=0.05)


def test_reward_workers_of_no_run_are_refused():
    config = smoke_config()
    rollout = dataclasses.replace(config.rollout, reward_workers=2)
    config, basis = dataclasses.replace(config, rollout=rollout), command.Basis(*BARE)
    with pytest.raises(ValueError, match=r"rollout.reward_workers 2: only runs that had some"):
        command.require_told(config, [], basis)


BARE = ("", "", "", None, None, None, None, "")


def test_flags_that_say_nothing_of_the_config_are_refused(tmp_path, capsys):
    speedup = "--update-speedup=1.5"
    assert "has no use: updates are lent no devices" in refused(capsys, "--config=smoke", speedup)
    run = _apart(make_run(tmp_path / "run", SMOKE))
    assert "must be above 0" in refused(capsys, f"--from={run}", "--update-speedup=0")


def test_the_division_to_set_is_told(tmp_path, capsys, monkeypatch):
    """Updates on two devices take 12 s, and with two or four more a half or a third of that. They
    are what a run waits for, so that one on four devices is better, and one that is lent two."""
    monkeypatch.setattr(search, "_around", lambda config, other_places: [])
    base = dataclasses.replace(
        SMOKE, update_seconds=12.0, crowding=Crowding(0.1, engines=Engines(3))
    )
    lent = dataclasses.replace(base, lent=LentDevices(Lending(3, 2, places=4), faster=3.0))
    run = _apart(make_run(tmp_path / "run", lent, course=sized, alpha=1.0), lent_engines=2)
    values = json.loads((run / "config.json").read_text())
    values["hardware"] |= {"chip": "h100", "devices": 8}
    values["learn"] |= {"microbatch_rows": 24}
    (run / "config.json").write_text(json.dumps(values))
    picture = tmp_path / "picture.svg"
    own = "--config.rollout.lent_engines=0"
    out = said(capsys, f"--from={run}", own, "--dispatch=0", f"--picture={picture}")
    assert "On twice the devices it is 2 times as fast (measured on 2 to 6)" in out
    assert "not varied" not in out and "updates lent, %" in " ".join(out.split())
    *_, told = out.splitlines()
    assert "--config.rollout.engine_devices=" in told or "--config.rollout.lent_engines=" in told
    assert "6 engine devices, 0 lent engines" in picture.read_text()
    out = said(capsys, f"--from={run}", own)
    assert "rollout.engine_devices is not varied: what other numbers of engines cost" in out


def sized(key, chance):
    """Members of a group are alike, and differ from other groups."""
    return Course(3.0 + 3.0 * (key.group % 5))
