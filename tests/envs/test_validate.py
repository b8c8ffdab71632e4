"""Our own worlds are sound."""

import json

import pytest

from ale_jax.launch import main


@pytest.mark.heavy
def test_the_worlds_of_a_config_are_sound_in_sandboxes(sandbox, capsys):
    assert main(["ale-jax", "validate", "--config=smoke", "--items=2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"trail", "count", "relay"}
    assert all((each["oracle"], each["nothing"]) == (4, 0) for each in told.values())


@pytest.mark.heavy
@pytest.mark.parametrize("world", ["shell", "corridor", "countdown"])
def test_a_world_is_sound(sandbox, capsys, world):
    assert main(["ale-jax", "validate", f"--world={world}", "--items=1"]) == 0
    assert " no oracle" not in capsys.readouterr().out
