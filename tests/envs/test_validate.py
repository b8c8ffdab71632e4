"""The proof that tasks are sound, and that it notices when one is not."""

import pytest

from ale_jax.agent.tools import bash, finish
from ale_jax.envs.shell import families, validate
from ale_jax.envs.shell.world import Goal, World

FILES = {"barn/lamp.txt": b"rose\n"}
FREE = World("", FILES, Goal(FILES), oracle=(finish(),))
HOPELESS = World("", FILES, Goal({"barn/lamp.txt": b"rose"}), oracle=(bash("ls"), finish()))


def test_a_sound_family_is_found_sound(sandbox):
    report = validate.check_family(sandbox, "sort", range(3))
    assert (report.oracle, report.nothing, report.seeds) == (3, 0, 3)
    assert report.turns == (4, 4, 4)
    assert report.sound


@pytest.mark.parametrize("world, oracle, nothing", [(FREE, 2, 2), (HOPELESS, 0, 0)])
def test_an_unsound_family_is_found_out(sandbox, monkeypatch, world, oracle, nothing):
    monkeypatch.setitem(families.FAMILIES, "bad", lambda rng: world)
    report = validate.check_family(sandbox, "bad", range(2))
    assert (report.oracle, report.nothing) == (oracle, nothing)
    assert not report.sound


def test_the_longest_observation_is_reported(sandbox, monkeypatch):
    monkeypatch.setitem(families.FAMILIES, "bad", lambda rng: HOPELESS)
    assert validate.check_family(sandbox, "bad", range(1)).longest_observation == len("barn")


def test_the_command_fails_if_any_family_is_unsound(sandbox, monkeypatch, capsys):
    assert validate.main(["--seeds=1"]) == 0
    assert "trail" in capsys.readouterr().out
    monkeypatch.setitem(families.FAMILIES, "bad", lambda rng: FREE)
    assert validate.main(["--seeds=1"]) == 1


def test_an_image_is_judged_by_its_worst_family(sandbox, monkeypatch):
    assert (validate.judge(sandbox, True), validate.judge(sandbox, False)) == (1.0, 0.0)
    monkeypatch.setitem(families.FAMILIES, "bad", lambda rng: FREE)
    assert (validate.judge(sandbox, True), validate.judge(sandbox, False)) == (1.0, 1.0)
    monkeypatch.setitem(families.FAMILIES, "bad", lambda rng: HOPELESS)
    assert (validate.judge(sandbox, True), validate.judge(sandbox, False)) == (0.0, 0.0)


def test_no_seeds_prove_nothing():
    with pytest.raises(SystemExit):
        validate.main(["--seeds=0"])
