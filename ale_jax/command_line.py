"""Reads the command line: the flags, and the config file that they name with its overrides.

The ConfigDict ends here; everything else gets the values of a checked `RunConfig`.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import runpy
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from ale_jax.config.fields import flat, meant_fields, unknown_field, wrong_value

OVERRIDE = re.compile(r"--?(?:no)?config\.([^=]*)")
WIDTH = 100
# A world that is named as module:Class, or reads files that its options name, and recorded data.
HAS_FILES = re.compile(r'"world": "[^"]*:|"options": [{\[]+"|"(?:files|pass_rates)": "[^"]')
CONFIG_FLAG = re.compile(r"--?config=")
WRONG_VALUE = re.compile(r"flag --config\.([\w.]+)=(.*?): ")  # how absl's message begins
CONFIGS = Path(__file__).parent / "configs"  # ours; a user's are files of theirs
ALGORITHMS = CONFIGS / "algorithms.py"


@dataclasses.dataclass(frozen=True)
class Flag:
    """A flag of the command line. value: what stands for its value in a help text."""

    define: Callable[..., Any]
    default: Any
    value: str
    meaning: str

    def typed(self, name: str) -> str:
        return f"--{name}={self.value}" if self.value else f"--{name}"


FLAGS = {
    "config": Flag(
        flags.DEFINE_string,
        "",
        "NAME",
        "one of our configs, which ale-jax --help lists, or a file; :ALGORITHM after it chooses "
        "another algorithm",
    ),
    "workdir": Flag(flags.DEFINE_string, "", "DIR", "the folder of the run"),
    "resume": Flag(
        flags.DEFINE_bool,
        False,
        "",
        "continue the run in DIR although its config was changed, in fields such as rl.steps or "
        "eval.every that do not affect a step (with the same config it continues without this "
        "flag)",
    ),
    "overwrite": Flag(flags.DEFINE_bool, False, "", "move the run in DIR aside and start over"),
    "spawn": Flag(flags.DEFINE_integer, 1, "N", "use N processes of this machine instead of one"),
    "coordinator": Flag(
        flags.DEFINE_string,
        "",
        "HOST:PORT",
        "with --processes: where process 0 is; not needed where a cluster says it (GKE's TPUs, "
        "Slurm)",
    ),
    "processes": Flag(
        flags.DEFINE_integer,
        1,
        "N",
        "the number of processes, all started with the same line but for --process",
    ),
    "process": Flag(flags.DEFINE_integer, 0, "K", "which of them this one is, from 0"),
    "ray-address": Flag(
        flags.DEFINE_string,
        "",
        "HOST:PORT",
        "play the episodes on the nodes of a Ray cluster that runs, and that this machine is "
        "part of (auto: the one that it is part of), instead of on this machine",
    ),
    "weights": Flag(flags.DEFINE_string, "", "MODEL", "a folder, a .gguf file or a model's name"),
    "devices": Flag(flags.DEFINE_string, "auto", "NxCHIP", "such as 8xh100; auto: the local ones"),
    "out": Flag(flags.DEFINE_string, "", "FOLDER", "where weights or episodes are written"),
    "episodes": Flag(
        flags.DEFINE_string,
        "",
        "FOLDER",
        "of an evaluation, or of a run: write its episodes instead",
    ),
    "format": Flag(
        flags.DEFINE_string,
        "messages",
        "NAME",
        "of episodes: messages (OpenAI's, with tools), or atif (harbor's trajectories)",
    ),
    "adapter": Flag(flags.DEFINE_bool, False, "", "write only the adapters, in PEFT's format"),
    "host": Flag(flags.DEFINE_string, "127.0.0.1", "ADDRESS", "where clients are answered"),
    "port": Flag(flags.DEFINE_integer, 8000, "PORT", "at which port; 0 for a free one"),
    "policy": Flag(
        flags.DEFINE_string,
        "newest",
        "POLICY",
        "newest or step:N of the run in --workdir, hf:DIR or hf:ORG/NAME with weights, or "
        "http://HOST/v1#MODEL of OpenAI's API, with its key in ALE_POLICY_KEY",
    ),
    "samples": Flag(flags.DEFINE_integer, 1, "N", "episodes of each item"),
    "limit": Flag(flags.DEFINE_integer, 0, "N", "items, evenly of all families; 0 for all"),
    "split": Flag(flags.DEFINE_string, "eval", "NAME", "of the items: eval, or train"),
    "sampling": Flag(
        flags.DEFINE_string,
        "",
        "NAME",
        "greedy, or paper (temperature 0.7, top-p 0.8, top-k 20); the config's eval_sampling",
    ),
    "prices": Flag(
        flags.DEFINE_string,
        "",
        "IN,OUT",
        "of a million tokens that the policy reads, and of a million that it writes",
    ),
    "dry-run": Flag(flags.DEFINE_bool, False, "", "print what would be played, and play nothing"),
    "world": Flag(
        flags.DEFINE_string,
        "",
        "NAME",
        "a world's short name, its class as module:Class, or a domain as configs write it",
    ),
    "items": Flag(flags.DEFINE_integer, 20, "N", "items of each family and split; all if fewer"),
    "runtime": Flag(flags.DEFINE_string, "", "NAME", "what runs sandboxes; the config's, or auto"),
    "workers": Flag(flags.DEFINE_integer, 1, "N", "episodes that are played at once"),
    "json": Flag(flags.DEFINE_bool, False, "", "print one JSON object instead of tables"),
    "debug": Flag(flags.DEFINE_bool, False, "", "show the traceback of an error"),
    "help": Flag(flags.DEFINE_bool, False, "", "print this text"),
}
EVERYWHERE = ("debug", "help")
SEVERAL = ("spawn", "coordinator", "processes", "process")
TRAIN = "train"


@dataclasses.dataclass(frozen=True)
class Command:
    """A subcommand. takes: names of its flags besides those that all have. operands: what it takes
    without a name; those of other subcommands are refused. overrides: whether it takes those of a
    config that is not named, but recorded."""

    meaning: str
    takes: tuple[str, ...]
    operands: str = ""
    overrides: bool = False


_TRAINS = ("config", "workdir", "resume", "overwrite", "ray-address", *SEVERAL)
COMMANDS = {
    TRAIN: Command(
        "train, evaluate and report the run in --workdir (without a subcommand, too)",
        _TRAINS,
    ),
    "plan": Command(
        "print how much memory the run needs on each device, and whether it fits; needs no "
        "devices, and reads nothing but the config of a line that trains, and what that names",
        _TRAINS,
    ),
    "new": Command(
        "print a config like another one, with the mesh, pages and microbatches that let --weights "
        "fit --devices",
        ("config", "weights", "devices"),
    ),
    "doctor": Command(
        "check whether this machine can run the config (with --workdir: there) or, started with "
        "the same line on all hosts, whether all of them can together",
        ("config", "workdir", *SEVERAL),
    ),
    "export": Command(
        "write the newest weights of the run in --workdir, with tokenizer and chat template, to "
        "a new folder that transformers can load, with adapters merged; or the conversations of "
        "--episodes in formats that other programs read, and warm_start.data",
        ("config", "workdir", "out", "adapter", "episodes", "format"),
    ),
    "serve": Command(
        "let clients of OpenAI's and Anthropic's APIs talk to the newest policy of the run in "
        "--workdir, or to --config.weights, until Ctrl-C",
        ("config", "workdir", "host", "port"),
    ),
    "validate": Command(
        "check that the tasks of a world, or of a config's worlds, can be solved, not by doing "
        "nothing, and are the same each time; exit code 1 if not",
        ("world", "config", "items", "runtime", "workers", "json"),
    ),
    "eval": Command(
        "play the evaluation tasks of a config with any policy, write one line for each episode "
        "into --out, and print what they tell; the same line goes on, and plays nothing twice",
        (
            *("config", "workdir", "out", "policy", "samples", "limit", "split", "sampling"),
            *("workers", "prices", "dry-run", "json"),
        ),
    ),
    "replay": Command(
        "train again, without engine or sandboxes, from the steps that the run RUN has recorded "
        "(rl.record_steps), and check the weights after each; with overrides of algo, critics, "
        "learn and rl_optimizer: what they would have made of these episodes",
        ("out",),
        operands="RUN",
        overrides=True,
    ),
    "compare": Command(
        "say how evaluations (folders with an episodes.jsonl) differ from the first of them, item "
        "by item, or seed by seed with NAME=FOLDER,FOLDER for the runs of one config",
        ("json",),
        operands="A B [C ...]",
    ),
}


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


def help_text(command: str) -> Iterator[str]:
    """Yields the lines that say what a subcommand does, and which flags it takes."""
    name = f"{command} {COMMANDS[command].operands}".strip()
    yield from textwrap.wrap(f"{name}: {COMMANDS[command].meaning}", WIDTH)
    yield ""
    for name in (*COMMANDS[command].takes, *EVERYWHERE):
        yield from _row(FLAGS[name].typed(name), FLAGS[name].meaning)


def _row(name: str, meaning: str) -> Iterator[str]:
    indented = {"initial_indent": f"  {name:26} ", "subsequent_indent": " " * 29}
    yield from textwrap.wrap(meaning, WIDTH, **indented)


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
        yield from _row(name, command.meaning)
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
