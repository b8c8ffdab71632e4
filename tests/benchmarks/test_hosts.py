"""What the benchmark of several processes calls equal, and when a run was fenced off."""

import json

import pytest

from ale_jax.command_line import read_config
from ale_jax.configs.algorithms import PRESETS
from ale_jax.monitor.evaluations import FamilyResult
from ale_jax.system.checks import checked_config
from benchmarks.hosts import __main__ as hosts
from benchmarks.hosts.equality import options_of
from benchmarks.hosts.learning import Learned, is_within
from benchmarks.hosts.lease import Fenced
from benchmarks.hosts.runs import differences, learned
from tests.rows import each_row

pytestmark = pytest.mark.slow


def write(folder, *lines):
    folder.mkdir()
    rows = ({"phase": "rl", "step": step, **line} for step, line in enumerate(lines, 1))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


LINE = {
    **{"loss": 0.5, "tokens_crc32": 7, "time/train_s": 1.0, "seconds": 3.0, "grad_norm": 0.0},
    "train_rollout_logp_diff_max": 4e-6,
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"loss": 0.5 * (1 + 5e-6)}, []),
        ({"time/train_s": 9.0, "seconds": 8.0}, []),
        ({"loss": 0.5 * (1 + 5e-5)}, ["step 2: loss"]),
        ({"train_rollout_logp_diff_max": 1.2e-6}, []),
        ({"train_rollout_logp_diff_max": 1.5e-5}, ["step 2: train_rollout_logp_diff_max"]),
        ({"grad_norm": 5e-6}, ["step 2: grad_norm"]),
        ({"tokens_crc32": 8}, ["step 2: tokens_crc32"]),
        ({"entropy": 1.0}, ["step 2: entropy"]),
    ],
)
def test_runs_differ_in_what_is_beyond_rounding(tmp_path, changed, expected):
    one = write(tmp_path / "one", LINE, LINE)
    other = write(tmp_path / "other", LINE, LINE | changed)
    assert differences(one, other) == expected


def test_runs_of_other_lengths_differ(tmp_path):
    one, other = write(tmp_path / "one", LINE, LINE), write(tmp_path / "other", LINE)
    assert differences(one, other) == ["2 steps, not 1"]


def test_a_run_without_gradients_has_learned_nothing(tmp_path):
    assert not learned(write(tmp_path / "idle", LINE))
    assert learned(write(tmp_path / "busy", LINE, LINE | {"grad_norm": 0.1}))


@each_row("algorithm", PRESETS)
def test_an_algorithm_accepts_the_options_by_which_it_is_compared(algorithm):
    checked_config(read_config(f"configs/smoke.py:{algorithm}", options_of(algorithm)))


FENCED = {"refused_code": 2, "refused_seconds": 3.0, "old_code": 2, "told": True, "differing": []}


@pytest.mark.parametrize(
    ("changed", "right"),
    [
        ({}, True),
        ({"refused_code": 0}, False),
        ({"old_code": 0}, False),
        ({"told": False}, False),
        ({"differing": ["step 2: loss"]}, False),
    ],
)
def test_a_run_is_fenced_off_if_all_of_it_happened(changed, right):
    assert Fenced(**(FENCED | changed)).right == right


def test_a_part_that_does_not_exist_is_refused(capsys):
    with pytest.raises(SystemExit):
        hosts.main(["--only=equal,nothing"])
    assert "choose among equal, deaths, sigterm, lease" in capsys.readouterr().err


def ran(processes, successes):
    return Learned(processes, 0, FamilyResult(successes, 240, False, successes / 240), None, True)


@pytest.mark.parametrize(("successes", "within"), [(210, True), (196, True), (180, False)])
def test_two_processes_have_learned_like_one_if_their_success_is_in_the_interval(successes, within):
    found = [*(ran(1, each) for each in (205, 212, 220)), ran(2, successes)]
    assert is_within(found) == within
