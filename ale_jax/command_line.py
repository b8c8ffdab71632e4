"""Reads the command line: the flags, and the config file that they name with its overrides.

The ConfigDict ends here; everything else gets the values of a checked `RunConfig`.
"""

from __future__ import annotations

import ast
import json
import re
import runpy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from ale_jax.config.fields import flat, meant_fields, unknown_field, wrong_value
from ale_jax.subcommands import COMMANDS, EVERYWHERE, FLAGS, TRAIN, row

OVERRIDE = re.compile(r"--?(?:no)?config\.([^=]*)")
# A world that is named as module:Class, or reads files that its options name, and recorded data.
HAS_FILES = re.compile(r'"world": "[^"]*:|"options": [{\[]+"|"(?:files|pass_rates)": "[^"]')
CONFIG_FLAG = re.compile(r"--?config=")
WRONG_VALUE = re.compile(r"flag --config\.([\w.]+)=(.*?): ")  # how absl's message begins
CONFIGS = Path(__file__).parent / "configs"  # ours; a user's are files of theirs
ALGORITHMS = CONFIGS / "algorithms.py"


def read_flags(argv: Sequence[str]) -> tuple[str, flags.FlagValues, list[str], list[str]]:
    """Reads a line: its subcommand, its flags, the overrides of config fields, and its operands.

    Raises:
      flags.Error, ValueError: an argument is not understood, or not taken by the subcommand.
    """
    program, *arguments = argv
    command = arguments.pop(0) if arguments and arguments[0] in COMMANDS else TRAIN
    overrides = [a for a in arguments if OVERRIDE.match(a)]
    try:
        line = [program, *(a for a in arguments if a not in overrides)]
        options, operands = _parse_options(line)
    except flags.UnrecognizedFlagError as error:
        raise _unknown_flag(error, arguments) from None
    takes = (*COMMANDS[command].takes, *EVERYWHERE)
    given = [name for name in FLAGS if options[name].present]
    given += ["config"] * bool(overrides and not COMMANDS[command].overrides)
    for name in given:
        if name not in takes:
            names = ", ".join(f"--{name}" for name in takes)
            raise ValueError(f"{command} does not take --{name}: it takes {names}")
    if operands and not COMMANDS[command].operands:
        raise ValueError(
            f"argument {operands[0]!r} is not understood: write --name=value, or one of "
            f"{', '.join(COMMANDS)} before all else"
        )
    return command, options, overrides, operands


def read_config(given: str, overrides: Sequence[str]) -> dict[str, Any]:
    """The values of `given`, a file or file:CHOICE, with overrides. ValueError if one is wrong."""
    file, _, choice = given.partition(":")
    path = _config_path(file)
    config = _load(path, choice)
    return _with_folder(_parsed(config, overrides, str(path)), path)


def with_overrides(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Returns the values of a config with overrides. ValueError if one is wrong."""
    return _parsed(ConfigDict(values), overrides, "ale-jax")


def _parsed(config: ConfigDict, overrides: Sequence[str], program: str) -> dict[str, Any]:
    known = list(flat(config.to_dict()))
    for override in overrides:
        name = OVERRIDE.match(override)[1]
        if name not in known:
            raise unknown_field(name, known)
    parsed = flags.FlagValues()
    argv = [program, *overrides]
    config_flags.DEFINE_config_dict("config", config, flag_values=parsed, sys_argv=argv)
    before = flat(config.to_dict())
    try:
        parsed(argv)
    except flags.IllegalFlagValueError as error:
        if wrong := WRONG_VALUE.match(str(error)):
            raise wrong_value(wrong[1], wrong[2], before[wrong[1]]) from error
        raise
    return config.to_dict()


def overridden(overrides: Sequence[str]) -> set[str]:
    """Returns the dotted names of the fields that overrides name."""
    return {found[1] for each in overrides if (found := OVERRIDE.match(each))}


def _with_folder(values: dict[str, Any], path: Path) -> dict[str, Any]:
    """Adds the folder of the config at `path`, where it names modules or files of worlds, and does
    not say where they are."""
    worlds = values.get("worlds", {})  # what is missing or wrong, the config's checks say
    named = json.dumps([worlds, values.get("warm_start")], default=str)
    if worlds.get("folder") == "" and HAS_FILES.search(named):
        worlds["folder"] = str(path.resolve().parent)
    return values


def described_choices() -> Iterator[str]:
    """Yields lines for a person: the subcommands, configs and algorithms that there are."""
    yield "Subcommands; `SUBCOMMAND --help` lists the flags of one:"
    for name, command in COMMANDS.items():
        yield from row(name, command.meaning)
    yield ""
    yield "Configs:"
    yield from _described_configs()
    yield ""
    yield from _described_algorithms()


def _parse_options(argv: Sequence[str]) -> tuple[flags.FlagValues, list[str]]:
    # Flags of this call, not absl's global ones, so that importing a module defines no flags.
    options = flags.FlagValues()
    options.set_gnu_getopt(True)  # flags may follow operands
    for name, flag in FLAGS.items():
        flag.define(name, flag.default, flag.meaning, flag_values=options)
    _, *operands = options(argv)
    return options, operands


def _unknown_flag(error: flags.UnrecognizedFlagError, arguments: Sequence[str]) -> Exception:
    """Returns `error`, or an error that names what the flag may have meant: a subcommand, or fields
    of the config."""
    given = next((a.partition("=")[2] for a in arguments if CONFIG_FLAG.match(a)), "")
    # All configs have the same fields, so any config will do if none was named.
    file = _found(given.partition(":")[0]) or CONFIGS / "smoke.py"
    known = flat(_load(file).to_dict())
    _, equals, value = error.flagvalue.partition("=")  # of the whole argument
    if wanted := {error.flagname, value} & COMMANDS.keys():
        return ValueError(
            f"--{error.flagname} is unknown: write the subcommand {wanted.pop()} before all else"
        )
    if not (meant := meant_fields(error.flagname, known)):
        return error
    choices = " or ".join(f"--config.{field}{equals}{value}" for field in meant)
    return ValueError(f"--{error.flagname} is unknown: did you mean {choices}?")


def _config_files() -> dict[str, Path]:
    """Our configs by name, such as experiments/shell."""
    files = [*sorted(CONFIGS.glob("*.py")), *sorted(CONFIGS.glob("*/*.py"))]
    names = {str(file.relative_to(CONFIGS).with_suffix("")): file for file in files}
    return {name: file for name, file in names.items() if "def get_config" in file.read_text()}


def _described_configs() -> Iterator[str]:
    for name, file in _config_files().items():
        docstring = ast.get_docstring(ast.parse(file.read_text())) or ""
        yield f"  {name:36} {docstring.partition(chr(10))[0]}"


def _described_algorithms() -> Iterator[str]:
    yield "Algorithms:"
    for name, preset in runpy.run_path(str(ALGORITHMS))["PRESETS"].items():
        yield f"  {name:36} {' '.join(preset.__doc__.split())}"


def _found(given: str) -> Path | None:
    """The file that a config is: one of ours by its name, or that path, or one of ours as it is
    called in the repository; None if there is none."""
    ours = _config_files()
    if given not in ours and Path(given).is_file():
        return Path(given)
    return ours.get(given.removeprefix("configs/").removesuffix(".py"))


def _config_path(given: str) -> Path:
    if not (path := _found(given)):
        what = f"there is no config {given}" if given else "--config is missing"
        raise ValueError(f"{what}: choose one of {', '.join(_config_files())}, or a file")
    return path


def _load(path: Path, choice: str = "") -> ConfigDict:
    try:
        config = runpy.run_path(str(path))["get_config"](*[choice] if choice else [])
    except Exception as error:  # the config is the user's code and may raise anything
        raise ValueError(f"{path}: {type(error).__name__}: {error}") from error
    if not isinstance(config, ConfigDict):
        raise ValueError(f"{path}: get_config() must return a ConfigDict, not {config!r:.80}")
    return config
