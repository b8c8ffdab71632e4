"""The subcommands of the command line, and the flags that each of them takes."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from absl import flags

WIDTH = 100


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
        "another algorithm; export, serve and eval have that of the run in --workdir without it",
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
        "newest or step:N of the run in --workdir, hf:DIR or hf:ORG/NAME with weights, and "
        "hf:DIR#NAME with that of serve.adapters, or "
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
    "workers": Flag(flags.DEFINE_integer, 1, "N", "episodes played at once; of a run: its places"),
    "from": Flag(
        flags.DEFINE_string, "", "RUNS", "folders of runs, separated by commas, whose times to use"
    ),
    "check": Flag(
        flags.DEFINE_string,
        "",
        "RUNS",
        "folders of other runs, which predictions are compared with; without them, those of --from "
        "are halved: the second half is predicted from the first",
    ),
    "episode-seconds": Flag(
        flags.DEFINE_string,
        "",
        "MEDIAN,P99",
        "without --from: of log-normal durations of episodes; 60,600 if not given",
    ),
    "update-seconds": Flag(
        flags.DEFINE_float, None, "S", "without --from: of an update; 60 if not given"
    ),
    "lost": Flag(
        flags.DEFINE_float,
        None,
        "SHARE",
        "without --from: of the attempts that lose their sandbox; 0.01 if not given",
    ),
    "dispatch": Flag(
        flags.DEFINE_float,
        None,
        "SHARE",
        "where a process has several engines: of the time of one alone, in which the process "
        "dispatches for it",
    ),
    "update-speedup": Flag(
        flags.DEFINE_float,
        None,
        "X",
        "how many times faster an update is on twice the devices, where runs do not tell it",
    ),
    "picture": Flag(flags.DEFINE_string, "", "FILE", "an .svg that gets a picture of the table"),
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
    config that is not named, but recorded. interrupted: what is said after Ctrl-C."""

    meaning: str
    takes: tuple[str, ...]
    operands: str = ""
    overrides: bool = False
    interrupted: str = "the same command starts over"


_TRAINS = ("config", "workdir", "resume", "overwrite", "ray-address", *SEVERAL)
COMMANDS = {
    TRAIN: Command(
        "train, evaluate and report the run in --workdir (without a subcommand, too)",
        _TRAINS,
        interrupted="the same command continues from the last checkpoint",
    ),
    "plan": Command(
        "print how much memory the run needs on each device, and whether it fits; needs no "
        "devices, and reads nothing but the config of a line that trains, and what that names",
        _TRAINS,
    ),
    "simulate": Command(
        "predict how fast the config trains, how idle learner and places are, and which alpha, "
        "places, redundant groups and division of devices are faster, by the times of runs that "
        "--from names (their config if --config is missing), or by given ones",
        (
            *("config", "from", "check", "episode-seconds", "update-seconds", "lost"),
            *("dispatch", "update-speedup", "picture"),
        ),
        overrides=True,
    ),
    "new": Command(
        "print a config like another one, with the mesh, pages and microbatches that let --weights "
        "fit --devices",
        ("config", "weights", "devices"),
    ),
    "doctor": Command(
        "check whether this machine can run the config (with --workdir: there) or, started with "
        "the same line on all hosts, whether all of them can together",
        ("config", "workdir", "resume", "overwrite", *SEVERAL),
    ),
    "export": Command(
        "write the newest weights of the run in --workdir, with tokenizer and chat template, to "
        "a new folder that transformers can load, with adapters merged; or the conversations of "
        "--episodes in formats that other programs read, and warm_start.data",
        ("config", "workdir", "out", "adapter", "episodes", "format"),
        overrides=True,
    ),
    "serve": Command(
        "let clients of OpenAI's and Anthropic's APIs talk to the newest policy of the run in "
        "--workdir, or to --config.weights, until Ctrl-C",
        ("config", "workdir", "host", "port"),
        overrides=True,
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
        overrides=True,
        interrupted="the same command plays what is left",
    ),
    "replay": Command(
        "train again, without engine or sandboxes, from the steps that the run RUN has recorded "
        "(rl.record_steps), and check the weights after each; with overrides of algo, critics, "
        "learn and rl_optimizer: what they would have made of these episodes",
        ("out",),
        operands="RUN",
        overrides=True,
        interrupted="a replay starts over, with another --out",
    ),
    "compare": Command(
        "say how evaluations (folders with an episodes.jsonl) differ from the first of them, item "
        "by item, or seed by seed with NAME=FOLDER,FOLDER for the runs of one config",
        ("json",),
        operands="A B [C ...]",
    ),
}


def help_text(command: str) -> Iterator[str]:
    """Yields the lines that say what a subcommand does, and which flags it takes."""
    name = f"{command} {COMMANDS[command].operands}".strip()
    yield from textwrap.wrap(f"{name}: {COMMANDS[command].meaning}", WIDTH)
    yield ""
    for name in (*COMMANDS[command].takes, *EVERYWHERE):
        yield from row(FLAGS[name].typed(name), FLAGS[name].meaning)


def interrupted(argv: Sequence[str]) -> str:
    """Returns what the subcommand of a line says after Ctrl-C, which may come before the line is
    understood."""
    named = next((each for each in argv[1:] if each in COMMANDS), TRAIN)
    return COMMANDS[named].interrupted


def row(name: str, meaning: str) -> Iterator[str]:
    """Yields the lines of a name and what it means."""
    indented = {"initial_indent": f"  {name:26} ", "subsequent_indent": " " * 29}
    yield from textwrap.wrap(meaning, WIDTH, **indented)
