"""The command line, `ale-sandbox COMMAND ...`, and its completion in bash and zsh."""

from __future__ import annotations

import argparse
import json
import os
import ssl
from typing import Any, TypedDict

from ale_jax.sandbox.datasets import FORM as DATASET_FORM
from ale_jax.sandbox.egress.uplink import EXAMPLES
from ale_jax.sandbox.egress.upstream import FILE_FORM, URL_FORM
from ale_jax.sandbox.hub.store import RECIPES_VARIABLE
from ale_jax.sandbox.pool.options import PoolOptions
from ale_jax.sandbox.sdk.login import CA, IN_CLEAR, TOKEN, URL
from ale_jax.sandbox.service.access import FORM, ServiceSettings
from ale_jax.sandbox.spec import DATASETS, SandboxSpec

ID = "ID"  # how all commands call an argument that is a sandbox's id
SHELLS = ("bash", "zsh")
DEFAULTS = ServiceSettings()
CPUS = PoolOptions().cpu_overcommit
DESCRIPTION = "Sandboxes for agents: serve, start and use them."
EPILOG = (
    f"The environment variables {URL} and {TOKEN} set the service and your token; {CA} and"
    f" {IN_CLEAR}=1 do what --ca and --in-clear do."
)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("ale-sandbox", description=DESCRIPTION, epilog=EPILOG)
    url = os.environ.get(URL, f"http://{DEFAULTS.host}:{DEFAULTS.port}")
    parser.add_argument("--url", default=url, help=f"URL of the service ({url})")
    parser.add_argument(
        "--ca",
        default=os.environ.get(CA, ""),
        metavar="FILE",
        help="certificates (PEM) that vouch for an https service; without it, the usual ones",
    )
    parser.add_argument(
        "--in-clear",
        action="store_true",
        default=os.environ.get(IN_CLEAR) == "1",
        help="send the token without encryption, also to other machines",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_serve(commands)
    start = commands.add_parser("start", help="start a sandbox and print its id")
    _add_spec(start)
    start.add_argument("--snapshot", default="", help="id of a snapshot to start from")
    start.add_argument("--idle", type=float, default=0.0, help="idle seconds until it is stopped")
    start.add_argument("--deadline", type=float, default=0.0, help="seconds until it is stopped")
    _add_exec(commands)
    _add_jobs(commands)
    _add_forward(commands)
    shell = commands.add_parser("shell", help="an interactive terminal; Ctrl-] leaves it")
    _add_id(shell)
    shell.add_argument("--run", default="bash -i", metavar="COMMAND")
    copy = commands.add_parser("cp", help="copy a file or directory; source or target is ID:PATH")
    copy.add_argument("source")
    copy.add_argument("target")
    _add_states(commands)
    _add_views(commands)
    commands.add_parser("usage", help="show what your token uses, its limits, and its totals")
    renew = commands.add_parser("renew", help="set how long a sandbox lives from now on")
    _add_id(renew)
    renew.add_argument("seconds", type=float, nargs="?", default=0.0, help="as long as you may")
    remove = commands.add_parser("rm", help="stop sandboxes")
    remove.add_argument("ids", nargs="*", metavar=ID)
    remove.add_argument("--all", action="store_true", help="all of yours")
    stop = commands.add_parser("stop-node", help="end the sandboxes that a service has left")
    stop.add_argument("state", metavar="DIR", help="the service's --state")
    _add_images(commands)
    completion = commands.add_parser("completion", help="print a script that completes commands")
    completion.add_argument("shell", choices=SHELLS)
    doctor = commands.add_parser("doctor", help="show what works here, and how to fix the rest")
    _add_spec(doctor)
    return parser


class Connection(TypedDict):
    """What the clients take."""

    url: str
    token: str | None
    verify: ssl.SSLContext | bool
    in_clear: bool


def connection_of(arguments: argparse.Namespace) -> Connection:
    """The service that the options and the environment name. Errors: ValueError."""
    verify: ssl.SSLContext | bool = True
    if arguments.ca:
        try:
            verify = ssl.create_default_context(cafile=arguments.ca)
        except OSError as error:  # also what is no certificate
            raise ValueError(f"--ca {arguments.ca!r} has no certificates: {error}") from error
    return Connection(
        url=arguments.url,
        token=os.environ.get(TOKEN),
        verify=verify,
        in_clear=arguments.in_clear,
    )


def spec_of(arguments: argparse.Namespace) -> SandboxSpec:
    """The spec that the options ask for. Errors: ValueError."""
    values = dict(_assignment(each) for each in arguments.set)
    if arguments.image:
        values["image"] = arguments.image
    return SandboxSpec.from_json(values)


def _add_exec(commands: Any) -> None:
    run = commands.add_parser(
        "exec",
        help="run a command; its exit code becomes this one's",
        usage="ale-sandbox exec [-i | --job NAME] [--cwd CWD] [--user NAME] [--timeout SECONDS]"
        " ID COMMAND [ARGUMENT ...]",
    )
    either = run.add_mutually_exclusive_group()  # a job has no client whose input it could get
    either.add_argument("-i", "--stdin", action="store_true", help="forward standard input")
    either.add_argument(
        "--job", default="", metavar="NAME", help="leave it running; `job` comes back to it"
    )
    run.add_argument("--cwd", default="/work", help="working directory (/work)")
    run.add_argument("--user", default="", metavar="NAME", help="in a sandbox whose user is root")
    run.add_argument("--timeout", type=float, help="seconds; no limit by default")
    _add_id(run)
    # Everything after the id belongs to the command, also what begins with a dash.
    run.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="one word: a bash command line; more: program and arguments",
    )


def _add_jobs(commands: Any) -> None:
    jobs = commands.add_parser("jobs", help="list what `exec --job` has started")
    _add_id(jobs)
    job = commands.add_parser("job", help="show what a job has written; its exit code, or 75")
    _add_id(job)
    job.add_argument("name", metavar="NAME")
    job.add_argument(
        "--wait", type=float, default=0.0, metavar="SECONDS", help="for its end, at most so long"
    )
    job.add_argument("--end", action="store_true", help="kill it and forget it, after that")


def _add_forward(commands: Any) -> None:
    forward = commands.add_parser("forward", help="reach a port of a sandbox from this machine")
    _add_id(forward)
    forward.add_argument("port", type=int, metavar="PORT", help="on which a program inside listens")
    forward.add_argument("--local", type=int, default=0, help="port here; 0, the default: any")


def _add_states(commands: Any) -> None:
    snapshot = commands.add_parser("snapshot", help="save a sandbox's files and print the id")
    _add_id(snapshot)
    restore = commands.add_parser("restore", help="reset a sandbox to a snapshot's files")
    _add_id(restore)
    restore.add_argument("snapshot", help="what `snapshot` printed")
    fork = commands.add_parser("fork", help="start sandboxes with the same files; print their ids")
    _add_id(fork)
    fork.add_argument("--count", type=int, default=1, help="how many (1)")
    reset = commands.add_parser("reset", help="end all processes and remove all files")
    _add_id(reset)


def _add_views(commands: Any) -> None:
    listing = commands.add_parser("ps", help="list the living sandboxes")
    listing.add_argument("-a", "--all", action="store_true", help="those that have ended, too")
    listing.add_argument("-q", "--quiet", action="store_true", help="only ids")
    commands.add_parser("stats", help="show the state of the service and its nodes")
    logs = commands.add_parser("logs", help="show what happened to a sandbox")
    _add_id(logs)
    events = commands.add_parser("events", help="show what happened to all of yours")
    for parser in (logs, events):
        parser.add_argument("-f", "--follow", action="store_true", help="also what happens next")
    wait = commands.add_parser("wait", help="wait until sandboxes have ended, and print why")
    wait.add_argument("ids", nargs="+", metavar=ID)


def _add_id(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar=ID)


def _add_serve(commands: Any) -> None:
    serve = commands.add_parser("serve", help="serve this machine's sandboxes over HTTP")
    add_serve_options(serve)


def add_serve_options(serve: argparse.ArgumentParser) -> None:
    serve.add_argument(
        "--host", default=DEFAULTS.host, help="any other than the default needs tokens"
    )
    serve.add_argument("--port", type=int, default=DEFAULTS.port, help="0: any free port")
    serve.add_argument(
        "--tls-cert", default="", metavar="FILE", help="certificate (PEM): serve https"
    )
    serve.add_argument(
        "--tls-key", default="", metavar="FILE", help="its private key (PEM, mode 600)"
    )
    serve.add_argument("--token-file", help=f"file with lines of {FORM}; mode 600")
    serve.add_argument("--runtime", default="auto", help="auto, docker, bubblewrap or kubernetes")
    _add_recipes(serve)
    serve.add_argument("--slots", type=int, default=64, help="maximum number of sandboxes per node")
    serve.add_argument(
        "--memory-mb", type=int, default=0, help="for all sandboxes of a node; 0: 90 %% of it"
    )
    serve.add_argument(
        "--cpus",
        type=float,
        default=0.0,
        help=f"cores of a node; 0: all. Specs may ask for {CPUS:g} times as many together",
    )
    serve.add_argument(
        "--uplink-network",
        action="append",
        default=[],
        metavar="NETWORK",
        help=f"private network that sandboxes may reach, {EXAMPLES}; may be repeated",
    )
    serve.add_argument(
        "--uplink-proxy",
        default="",
        metavar="PROXY",
        help=f"HTTP proxy that leads out: {URL_FORM}, or a file of mode 600 with {FILE_FORM}",
    )
    serve.add_argument(
        "--dataset",
        action="append",
        default=[],
        metavar=DATASET_FORM,
        help=f"directory that specs may name, read-only in {DATASETS}/NAME; may be repeated. Tokens"
        " need datasets=NAME in their line, administrators do not",
    )
    serve.add_argument("--snapshots", default="", help="directory for persistent snapshots")
    serve.add_argument(
        "--state",
        default="",
        metavar="DIR",
        help="directory of a process that owns the sandboxes and outlives the service; started if"
        " there is none, ended by stop-node; without it, they end with the service",
    )
    # Set by the service that starts the process: this same command line, as the owner.
    serve.add_argument("--owner-fd", type=int, help=argparse.SUPPRESS)
    serve.add_argument("--warm", type=int, default=0, help="sandboxes to keep ready on each node")
    serve.add_argument(
        "--rock", action="store_true", help="also serve the routes that rl-rock uses"
    )
    _add_spec(serve)


def _add_images(commands: Any) -> None:
    images = commands.add_parser("images", help="list, build, try and remove Docker images")
    _add_recipes(images)
    actions = images.add_subparsers(dest="action", metavar="ACTION")
    actions.add_parser("list", help="list local images (the default)")
    build = actions.add_parser("build", help="build missing images from their recipes")
    _add_recipes(build)
    build.add_argument("names", nargs="+", metavar="name")
    build.add_argument(
        "--pull", action="store_true", help="pull base images and images without a recipe"
    )
    attempt = actions.add_parser("try", help="start a sandbox of an image and record the result")
    attempt.add_argument("name")
    remove = actions.add_parser("rm", help="remove images built from recipes")
    remove.add_argument("names", nargs="+", metavar="name")
    prune = actions.add_parser("prune", help="remove all but the newest images of each recipe")
    prune.add_argument("--keep", type=int, default=1, help="images to keep per recipe (1)")


def _add_recipes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--recipes",
        default=argparse.SUPPRESS,
        metavar="DIR",
        help="your own recipes: the folder DIR/NAME is that of the image ale-NAME"
        f" (or {RECIPES_VARIABLE})",
    )


def _add_spec(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--image", help="name of the image")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="a field of the spec, such as memory_mb=512; may be repeated",
    )


def _assignment(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set {text!r:.80} must be FIELD=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:  # a word that is not JSON is a string, as in user=root
        return name, value


# zsh runs bash's completions, too. Ids are asked of the service, so they are those of the moment.
SCRIPT = r"""
_ale_sandbox() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} command= number
    for ((number = 1; number < COMP_CWORD; number++)); do
        case ${{COMP_WORDS[number]}} in
            {names}) command=${{COMP_WORDS[number]}}; break;;
        esac
    done
    local words= takes_ids= takes_files=
    case $command in
{cases}
    esac
    if [[ $word != -* && $takes_ids ]]; then
        words="$words $(ale-sandbox ps --quiet 2> /dev/null)"
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word") $(${{takes_files:-:}} "$word"))
}}
_ale_sandbox_files() {{ compgen -f -- "$1"; }}
complete -o nosort -F _ale_sandbox ale-sandbox
"""
FOR_ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"
WITH_FILES = ("cp", "serve")


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """What `shell` ("bash" or "zsh") must evaluate, for example in its ~/.bashrc."""
    commands = next(
        action.choices for action in parser._actions if isinstance(action.choices, dict)
    )
    cases = [f'        "") words="{" ".join((*commands, *_options(parser)))}";;']
    cases += [f"        {name}) {_case(name, each)};;" for name, each in commands.items()]
    text = SCRIPT.format(names="|".join(commands), cases="\n".join(cases)).lstrip("\n")
    return FOR_ZSH + text if shell == "zsh" else text


def _case(name: str, command: argparse.ArgumentParser) -> str:
    choices = [word for action in command._actions for word in action.choices or ()]
    ids = any(action.metavar == ID for action in command._actions) or name == "cp"
    files = "_ale_sandbox_files" if name in WITH_FILES else ""
    words = " ".join((*choices, *_options(command)))
    return f'words="{words}" takes_ids={"yes" if ids else ""} takes_files={files}'


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [word for action in parser._actions for word in action.option_strings]
