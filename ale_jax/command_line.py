"""Reads the command line: the flags, and the config file that they name with its overrides.

The ConfigDict ends here; everything else gets the values of a checked `RunConfig`.
"""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from ale_jax.system.fields import flat, meant_fields, unknown_field, wrong_value

OVERRIDE = re.compile(r"--?(?:no)?config\.([^=]*)")
CONFIG_FLAG = re.compile(r"--?config=")
WRONG_VALUE = re.compile(r"flag --config\.([\w.]+)=(.*?): ")  # how absl's message begins
ALGORITHMS = Path("configs/algorithms.py")


def read_flags(argv: Sequence[str]) -> tuple[flags.FlagValues, list[str]]:
    """The flags, and the arguments that override fields of the config.

    Raises:
      flags.Error, ValueError: an argument is not understood.
    """
    program, *arguments = argv
    overrides = [a for a in arguments if OVERRIDE.match(a)]
    try:
        options = _parse_options([program, *(a for a in arguments if a not in overrides)])
    except flags.UnrecognizedFlagError as error:
        raise _unknown_flag(error, arguments) from None
    return options, overrides


def read_config(given: str, overrides: Sequence[str]) -> dict[str, Any]:
    """The values of `given`, a file or file:CHOICE, with overrides. ValueError if one is wrong."""
    file, _, choice = given.partition(":")
    path = _config_path(file)
    config = _load(path, choice)
    known = list(flat(config.to_dict()))
    for override in overrides:
        name = OVERRIDE.match(override)[1]
        if name not in known:
            raise unknown_field(name, known)
    parsed = flags.FlagValues()
    argv = [str(path), *overrides]
    config_flags.DEFINE_config_dict("config", config, flag_values=parsed, sys_argv=argv)
    before = flat(config.to_dict())
    try:
        parsed(argv)
    except flags.IllegalFlagValueError as error:
        if wrong := WRONG_VALUE.match(str(error)):
            raise wrong_value(wrong[1], wrong[2], before[wrong[1]]) from error
        raise
    return config.to_dict()


def described_choices() -> Iterator[str]:
    """Lines for a person: the configs and algorithms that there are."""
    yield "Configs:"
    yield from _described_configs()
    yield ""
    yield from _described_algorithms()


def _parse_options(argv: Sequence[str]) -> flags.FlagValues:
    # Flags of this call, not absl's global ones, so that importing a module defines no flags.
    options = flags.FlagValues()
    for name, define, default in (
        ("config", flags.DEFINE_string, ""),
        ("mode", flags.DEFINE_string, "train"),
        ("workdir", flags.DEFINE_string, ""),
        ("out", flags.DEFINE_string, ""),
        ("host", flags.DEFINE_string, "127.0.0.1"),
        ("port", flags.DEFINE_integer, 8000),
        ("spawn", flags.DEFINE_integer, 1),
        ("coordinator", flags.DEFINE_string, ""),
        ("processes", flags.DEFINE_integer, 1),
        ("process", flags.DEFINE_integer, 0),
        ("ray-address", flags.DEFINE_string, ""),
        ("adapter", flags.DEFINE_bool, False),
        ("resume", flags.DEFINE_bool, False),
        ("overwrite", flags.DEFINE_bool, False),
        ("debug", flags.DEFINE_bool, False),
        ("help", flags.DEFINE_bool, False),
    ):
        define(name, default, "see --help", flag_values=options)
    _, *stray = options(argv)
    if stray:
        raise ValueError(f"argument {stray[0]!r} is not understood: write --name=value")
    return options


def _unknown_flag(error: flags.UnrecognizedFlagError, arguments: Sequence[str]) -> Exception:
    """`error`, or an error that names the config fields that the flag may have meant."""
    given = next((a.partition("=")[2] for a in arguments if CONFIG_FLAG.match(a)), "")
    # All configs have the same fields, so any config will do if none was named.
    file = given.partition(":")[0] or next(map(str, _config_files()), "")
    known = flat(_load(Path(file)).to_dict()) if Path(file).is_file() else ()
    if not (meant := meant_fields(error.flagname, known)):
        return error
    _, equals, value = error.flagvalue.partition("=")  # of the whole argument
    choices = " or ".join(f"--config.{field}{equals}{value}" for field in meant)
    return ValueError(f"--{error.flagname} is unknown: did you mean {choices}?")


def _config_files() -> list[Path]:
    files = [*sorted(Path("configs").glob("*.py")), *sorted(Path("configs").glob("*/*.py"))]
    return [file for file in files if "def get_config" in file.read_text()]


def _described_configs() -> Iterator[str]:
    for file in _config_files():
        docstring = ast.get_docstring(ast.parse(file.read_text())) or ""
        yield f"  {file!s:36} {docstring.partition(chr(10))[0]}"


def _described_algorithms() -> Iterator[str]:
    if ALGORITHMS.is_file():
        yield "Algorithms:"
        for name, preset in runpy.run_path(str(ALGORITHMS))["PRESETS"].items():
            yield f"  {name:36} {' '.join(preset.__doc__.split())}"


def _config_path(given: str) -> Path:
    path = Path(given)
    if not given or not path.is_file():
        choices = ", ".join(map(str, _config_files())) or "a Python file with get_config()"
        what = f"there is no config file {given}" if given else "--config is missing"
        raise ValueError(f"{what}: choose one of {choices}")
    return path


def _load(path: Path, choice: str = "") -> ConfigDict:
    try:
        config = runpy.run_path(str(path))["get_config"](*[choice] if choice else [])
    except Exception as error:  # the config is the user's code and may raise anything
        raise ValueError(f"{path}: {type(error).__name__}: {error}") from error
    if not isinstance(config, ConfigDict):
        raise ValueError(f"{path}: get_config() must return a ConfigDict, not {config!r:.80}")
    return config
