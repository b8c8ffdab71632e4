"""`ale-sandbox`: runs one command of the command line. Errors are printed as one line with a
remedy."""

from __future__ import annotations

import argparse
import contextlib
import posixpath
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from ale_jax.sandbox.api import FileInfo, SandboxError
from ale_jax.sandbox.cli import interactive, tables
from ale_jax.sandbox.cli.parser import connection_of, make_parser, script, spec_of
from ale_jax.sandbox.pool.api import PoolEvent, SandboxGone
from ale_jax.sandbox.sdk.client import RemoteSandbox, SandboxClient
from ale_jax.sandbox.sdk.login import TOKEN
from ale_jax.sandbox.service import uploads

POLL_S = 0.5
FAILED = 1
FAILED_EXEC = 125  # as in docker, since 1 could be the command's own exit code
INTERRUPTED = 130
WHOLE = "for all of ale-jax, type in a clone of it: pip install ."
STILL_RUNS = 75  # EX_TEMPFAIL of sysexits.h
MAX_FILE = 64 << 20  # bytes of a single file that the service sends at once
WORK = "/work"
OWN_CODES = ("exec", "shell", "job")  # that end with the exit code of what they are about


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code. For OWN_CODES it is the command's, or FAILED_EXEC."""
    arguments = make_parser().parse_args(argv)
    try:
        if arguments.command in LOCAL:
            return LOCAL[arguments.command](arguments)
        with SandboxClient(**connection_of(arguments)) as client:
            return REMOTE[arguments.command](client, arguments)
    except (SandboxError, ValueError, OSError) as error:
        text = " ".join(_told(error, arguments).split())
        print(f"ale-sandbox {arguments.command}: {tables.printable(text)}", file=sys.stderr)
        return FAILED_EXEC if arguments.command in OWN_CODES else FAILED
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("ale_jax"):
            raise
        told = f"it needs {error.name}, which the client alone leaves out; {WHOLE}"
        print(f"ale-sandbox {arguments.command}: {told}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _told(error: Exception, arguments: argparse.Namespace) -> str:
    if isinstance(error, PermissionError) and error.errno is None:  # the service refused the token
        what = str(error).partition(";")[0]
        return f"{what}; set {TOKEN} to a token of {arguments.url} that permits it"
    return str(error)


def _start(client: SandboxClient, arguments: argparse.Namespace) -> int:
    box = client.start(
        spec_of(arguments),
        snapshot=arguments.snapshot,
        idle_seconds=arguments.idle,
        deadline_seconds=arguments.deadline,
    )
    print(box.id)
    return 0


def _exec(client: SandboxClient, arguments: argparse.Namespace) -> int:
    words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    if not words:
        raise ValueError("name the command: ale-sandbox exec ID COMMAND")
    argv = words[0] if len(words) == 1 else words
    box = client.attach(arguments.id)
    options = {"timeout": arguments.timeout, "cwd": arguments.cwd, "user": arguments.user}
    if arguments.job:
        box.start_job(arguments.job, argv, **options)
        return 0
    if arguments.stdin:
        command = argv if isinstance(argv, str) else shlex.join(argv)
        inside = f"cd -- {shlex.quote(arguments.cwd)} || exit {FAILED_EXEC}\n{command}"
        return interactive.pipe(box, inside, arguments.user, arguments.timeout)
    with box.spawn(argv, **options) as output:
        for kind, data in output:
            interactive.show(kind, data)
    assert output.exit_code is not None
    return output.exit_code


def _jobs(client: SandboxClient, arguments: argparse.Namespace) -> int:
    print("".join(f"{name}\n" for name in client.attach(arguments.id).jobs()), end="")
    return 0


def _job(client: SandboxClient, arguments: argparse.Namespace) -> int:
    box = client.attach(arguments.id)
    found = box.job(arguments.name, arguments.wait)
    interactive.show("stdout", found.stdout.encode())
    interactive.show("stderr", found.stderr.encode())
    if arguments.end:
        box.end_job(arguments.name)
    elif found.exit_code is None:
        print(f"ale-sandbox job: it runs, since {found.seconds:.0f} s", file=sys.stderr)
    return STILL_RUNS if found.exit_code is None else found.exit_code


def _forward(client: SandboxClient, arguments: argparse.Namespace) -> int:
    box = client.attach(arguments.id)
    with box.forward(arguments.port, arguments.local) as port:
        print(f"127.0.0.1:{port} is port {arguments.port} of {box.id}, until Ctrl-C", flush=True)
        while (cause := box.status().cause) is None:
            time.sleep(POLL_S)
    raise SandboxGone(box.id, cause)


def _shell(arguments: argparse.Namespace) -> int:
    return interactive.shell(connection_of(arguments), arguments.id, arguments.run)


def _copy(client: SandboxClient, arguments: argparse.Namespace) -> int:
    """Copies a file or a directory, with its permissions and times, into a sandbox or out of it."""
    source, target = arguments.source, arguments.target
    inside = [_split(text) for text in (source, target)]
    if sum(each is not None for each in inside) != 1:
        raise ValueError(f"cp {source!r} {target!r}: one of the two must be ID:PATH")
    if inside[0]:
        id, path = inside[0]
        _copy_out(client.attach(id), path, Path(target))
    else:
        id, path = inside[1]
        _copy_in(client.attach(id), Path(source), path)
    return 0


def _split(text: str) -> tuple[str, str] | None:
    """Returns ID and path; None for a local path, which has no colon or a / before the first."""
    id, colon, path = text.partition(":")
    if not colon or "/" in id or not id:
        return None
    return id, posixpath.join(WORK, path)


def _copy_in(box: RemoteSandbox, source: Path, path: str) -> None:
    if source.is_dir():
        box.upload(source, path)
        return
    there = _find(box, path)
    if path.endswith("/") or (there and there.kind == "directory"):
        path = posixpath.join(path, source.name)
    directory, name = posixpath.split(path)
    try:
        box.unpack(uploads.pack_file(source, name), directory)
    except SandboxGone:
        raise
    except SandboxError as error:
        raise SandboxError(f"{error}: is {directory!r} writable, and is there room?") from error


def _copy_out(box: RemoteSandbox, path: str, target: Path) -> None:
    found = _find(box, path)
    if found is None:
        raise FileNotFoundError(f"there is no {path!r} in sandbox {box.id}")
    if found.kind == "directory":
        box.download(path, target)
        return
    if found.kind == "link":
        raise ValueError(f"{path!r} is a link: name what it leads to, or its directory")
    content = box.read(path, MAX_FILE)
    if len(content) == MAX_FILE:
        raise ValueError(f"{path!r} has {MAX_FILE} bytes or more: copy its directory")
    if target.is_dir():
        target = target / posixpath.basename(path)
    uploads.replace_file(target, content, found.mode, found.modified)


def _find(box: RemoteSandbox, path: str) -> FileInfo | None:
    """What is at `path`, which need not exist."""
    directory, name = posixpath.split(path.rstrip("/"))
    if not name:
        return FileInfo("/", "directory", 0, 0o755, 0)
    try:
        found = next((each for each in box.list(directory) if each.name == name), None)
    except FileNotFoundError:
        return None
    return found or _find_unlisted(box, posixpath.join(directory, name))


def _find_unlisted(box: RemoteSandbox, path: str) -> FileInfo | None:
    """As `_find`, for what its directory has beyond the number of entries that are listed."""
    name = posixpath.basename(path)
    with contextlib.suppress(FileNotFoundError):
        box.list(path)
        return FileInfo(name, "directory", 0, 0o755, 0)
    with contextlib.suppress(FileNotFoundError):
        box.read(path, 1)
        return FileInfo(name, "file", 0, *_mode_and_time(box, path))
    return None


def _mode_and_time(box: RemoteSandbox, path: str) -> tuple[int, int]:
    """Those of a file. Errors: OSError if no program in the sandbox tells them."""
    told = box.exec(["stat", "-c", "%a %Y", path])
    try:
        mode, modified = told.stdout.split()
        return int(mode, 8), int(modified)
    except ValueError as error:
        words = "its directory has too many entries to list, and stat does not work there"
        raise OSError(f"the permissions of {path!r} are unknown: {words}: move the file") from error


def _list(client: SandboxClient, arguments: argparse.Namespace) -> int:
    found = client.statuses()
    if not arguments.all:
        found = [status for status in found if status.cause is None]
    if arguments.quiet:
        print("".join(f"{status.id}\n" for status in found), end="")
    else:
        tables.sandboxes(found)
    return 0


def _stats(client: SandboxClient, arguments: argparse.Namespace) -> int:
    tables.nodes(client.nodes())
    states = client.stats()["sandboxes"].items()
    tables.show("", ("sandboxes", "count"), states)
    return 0


def _usage(client: SandboxClient, arguments: argparse.Namespace) -> int:
    tables.usages(client.usage())
    return 0


def _renew(client: SandboxClient, arguments: argparse.Namespace) -> int:
    client.attach(arguments.id).renew(arguments.seconds)
    return 0


def _snapshot(client: SandboxClient, arguments: argparse.Namespace) -> int:
    print(client.attach(arguments.id).snapshot().id)
    return 0


def _fork(client: SandboxClient, arguments: argparse.Namespace) -> int:
    for box in client.attach(arguments.id).fork(arguments.count):
        print(box.id)
    return 0


def _restore(client: SandboxClient, arguments: argparse.Namespace) -> int:
    client.attach(arguments.id).restore(arguments.snapshot)
    return 0


def _reset(client: SandboxClient, arguments: argparse.Namespace) -> int:
    client.attach(arguments.id).reset()
    return 0


def _events(client: SandboxClient, arguments: argparse.Namespace) -> int:
    for event in _follow(client, arguments.follow, ""):
        print(tables.line(event), flush=True)
    return 0


def _logs(client: SandboxClient, arguments: argparse.Namespace) -> int:
    client.attach(arguments.id)  # fails if there is no such sandbox
    for event in _follow(client, arguments.follow, arguments.id):
        print(tables.line(event), flush=True)
    return 0


def _follow(client: SandboxClient, forever: bool, id: str) -> Iterable[PoolEvent]:
    """The latest events, then the new ones. With an id, only those of that sandbox, to its end."""
    after = None
    while True:
        is_last = not forever or bool(id and client.attach(id).status().cause)
        answer = client.events(after)
        yield from (each for each in answer.events if id in ("", each.sandbox))
        if is_last and (after is None or not answer.events):
            return
        after = answer.next
        time.sleep(0.0 if answer.events else POLL_S)


def _wait(client: SandboxClient, arguments: argparse.Namespace) -> int:
    for id in arguments.ids:
        box = client.attach(id)
        while (cause := box.status().cause) is None:
            time.sleep(POLL_S)
        print(f"{id} {cause}")
    return 0


def _remove(client: SandboxClient, arguments: argparse.Namespace) -> int:
    ids = arguments.ids
    if arguments.all:
        ids = [status.id for status in client.statuses() if status.cause is None]
    elif not ids:
        raise ValueError("name the sandboxes, or use --all")
    for id in ids:
        client.attach(id).close()
    return 0


def _completion(arguments: argparse.Namespace) -> int:
    print(script(make_parser(), arguments.shell), end="")
    return 0


# The next four import modules that take longer to load than most commands take to run.
def _serve(arguments: argparse.Namespace) -> int:
    from ale_jax.sandbox.cli.local import run_service

    return run_service(arguments)


def _stop_node(arguments: argparse.Namespace) -> int:
    from ale_jax.sandbox.cli.local import stop_node

    return stop_node(arguments.state)


def _images(arguments: argparse.Namespace) -> int:
    from ale_jax.sandbox.cli.local import images

    return images(arguments)


def _doctor(arguments: argparse.Namespace) -> int:
    from ale_jax.sandbox.cli.local import doctor

    return doctor(spec_of(arguments), connection_of(arguments))


LOCAL: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "serve": _serve,
    "shell": _shell,
    "stop-node": _stop_node,
    "completion": _completion,
    "images": _images,
    "doctor": _doctor,
}
REMOTE: Mapping[str, Callable[[SandboxClient, argparse.Namespace], int]] = {
    "start": _start,
    "exec": _exec,
    "forward": _forward,
    "jobs": _jobs,
    "job": _job,
    "cp": _copy,
    "ps": _list,
    "stats": _stats,
    "usage": _usage,
    "renew": _renew,
    "snapshot": _snapshot,
    "restore": _restore,
    "fork": _fork,
    "reset": _reset,
    "logs": _logs,
    "events": _events,
    "wait": _wait,
    "rm": _remove,
}


if __name__ == "__main__":
    sys.exit(main())
