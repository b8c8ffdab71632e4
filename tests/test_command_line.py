"""A subcommand takes its own flags, and a config is found by name from any folder."""

import re

import pytest

from ale_jax.command_line import read_config, read_flags
from ale_jax.launch import main
from ale_jax.subcommands import COMMANDS, help_text


@pytest.mark.parametrize("command", COMMANDS)
def test_a_subcommand_lists_its_own_flags(command, capsys):
    assert main(["ale-jax", command, "--help"]) == 0
    listed = re.findall(r"^  --([a-z-]+)", capsys.readouterr().out, re.M)
    assert listed == [*COMMANDS[command].takes, "debug", "help"]


def test_a_line_of_help_is_not_too_long():
    lines = [line for command in COMMANDS for line in help_text(command)]
    assert max(map(len, lines)) <= 100


def test_without_a_subcommand_a_line_trains():
    assert read_flags(["ale-jax", "--config=smoke"])[0] == "train"
    line = ["ale-jax", "plan", "--config=x", "--config.seed=1"]
    command, options, *others = read_flags(line)
    assert (command, options.config, others) == ("plan", "x", [["--config.seed=1"], []])


def test_operands_are_left_to_the_subcommand_that_has_some():
    command, options, _, operands = read_flags(["ale-jax", "compare", "a", "x=b,c", "--json"])
    assert (command, options.json, operands) == ("compare", True, ["a", "x=b,c"])


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (["serve", "--resume"], "serve does not take --resume: it takes --config, --workdir, --h"),
        (["export", "--port=1"], "export does not take --port: it takes --config"),
        (["compare", "--config.seed=1"], "compare does not take --config: it takes --json"),
        (["plan", "a"], "argument 'a' is not understood: write --name=value, or one of train"),
        (["doctor", "--out=x"], "doctor does not take --out"),
        (["--out=x"], "train does not take --out"),
        (["--config=smoke", "plan"], "'plan' is not understood: write --name=value, or one of tr"),
        (["trian"], "'trian' is not understood"),
        (["--mode=plan"], "--mode is unknown: write the subcommand plan before all else"),
        (["--serve"], "--serve is unknown: write the subcommand serve before all else"),
    ],
)
def test_what_a_subcommand_does_not_take_is_refused_by_name(line, answer):
    with pytest.raises(ValueError, match=re.escape(answer)):
        read_flags(["ale-jax", *line])


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("smoke", "smoke"),
        ("smoke:grpo", "smoke"),
        ("configs/smoke.py", "smoke"),
        ("configs/quickstart.py:grpo", "quickstart_grpo"),
        ("experiments/shell", "shell"),
    ],
)
def test_a_config_is_found_by_name_from_any_folder(given, name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert read_config(given, [])["name"] == name


def test_a_file_of_the_users_comes_first_and_their_packages_are_not_loaded(monkeypatch, tmp_path):
    for package in ("configs", "envs"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise AssertionError")
    (tmp_path / "configs" / "smoke.py").write_text(
        "from ale_jax.configs import smoke\n\n\n"
        "def get_config():\n    c = smoke.get_config()\n    c.name = 'mine'\n    return c\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert read_config("configs/smoke.py", [])["name"] == "mine"
    assert read_config("smoke", [])["name"] == "smoke"
