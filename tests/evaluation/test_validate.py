"""The check of a world: a sound one passes, and each fault is found and named."""

import json
import re

from ale_jax.launch import main
from tests.rows import each_row

PLACE = "tests.evaluation.faulty_worlds"


def validate(capsys, *args):
    code = main(["ale-jax", "validate", *args])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_a_sound_world_passes(capsys):
    code, out, err = validate(capsys, f"--world={PLACE}:Sound", "--items=3")
    assert (code, err) == (0, "")
    assert re.search(r"^numbers +6 +6/6 +0/6 +2 / 2 / 2$", out, re.M)


def test_a_world_without_an_oracle_passes(capsys):
    code, out, _ = validate(capsys, f"--world={PLACE}:NoOracle", "--items=2", "--workers=2")
    assert code == 0 and re.search(r"^numbers +4 +0/0 +0/4 +no oracle$", out, re.M)


@each_row(
    "world, fault",
    [
        ("Free", r"doing nothing earns 1, and 1 is solved"),
        ("Hopeless", r"the oracle earns 0.25, and 1 is solved"),
        ("Flaky", r"the oracle is judged differently each time: \d+, \d+"),
        ("Changing", r"reads something else the second time: message 0 \(user\) 'call \d"),
        ("Unjudged", r"the oracle: no verdict: verifier_error: VerifierError: the judge is ␛\["),
        ("Broken", r"no verdict: env_error: WorldError: KeyError: 'x' \(faulty_worlds.py:\d+\)"),
    ],
)
def test_a_fault_is_named(capsys, world, fault):
    code, out, err = validate(capsys, f"--world={PLACE}:{world}", "--items=1")
    assert code == 1
    assert re.search(rf"^  item \d+: .*{fault}", out, re.M), out
    assert err == "2 items have faults\n"


def test_many_faults_are_cut_short_and_json_has_all(capsys):
    _, out, _ = validate(capsys, f"--world={PLACE}:Free", "--items=15")
    assert out.count("  item ") == 20 and "and 10 more" in out
    code, out, err = validate(capsys, f"--world={PLACE}:Free", "--items=15", "--json")
    told = json.loads(out)["numbers"]
    assert (code, err) == (1, "")
    assert (told["items"], told["oracle"], told["nothing"]) == (30, 30, 30)
    assert len(told["faults"]) == 30 and {f["split"] for f in told["faults"]} == {"train", "eval"}


@each_row(
    "args, fault",
    [
        ([], "name either a world, with --world, or a config with --config"),
        (["--world=shell", "--config=smoke"], "name either a world"),
        (["--world=nowhere"], "world 'nowhere' is unknown: choose one of bfcl, corridor"),
        (["--world={'world': }"], "is no dict"),
        (["--world={'word': 'shell'}"], "worlds.train.word"),
        (["--world={'world': 'shell', 'options': {'a': 1}}"], "it takes ()"),
        ([f"--world={PLACE}:Sound", "--items=0"], "--items=0 must be at least 1"),
        ([f"--world={PLACE}:Sound", "--workers=0"], "--workers=0 must be at least 1"),
        (["--world=shell", "--runtime=podman", "--items=1"], "'podman' must be one of"),
    ],
)
def test_a_mistake_on_the_command_line_is_named(capsys, args, fault):
    code, _, err = validate(capsys, *args)
    assert code == 2 and fault in err and err.count("\n") == 1
