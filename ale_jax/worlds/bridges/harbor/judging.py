"""How a phase is judged, in the sandbox of the policy or in a fresh one."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ale_jax.sandbox.api import JudgedSandbox, SandboxError
from ale_jax.sandbox.verify.verifier import (
    Evidence,
    Judgement,
    Verifier,
    judge,
    pytest_verifier,
    trusted_path,
)
from ale_jax.worlds.api import NoVerdictError, VerifierError
from ale_jax.worlds.bridges.harbor.place import LAY_S, lay, prepare, unpack
from ale_jax.worlds.bridges.harbor.records import (
    REPORT,
    TEST,
    TESTS,
    Artifact,
    Check,
    HarborTask,
)
from ale_jax.worlds.bridges.harbor.rewards import ByName
from ale_jax.worlds.bridges.harbor.trees import cleaned

ARCHIVE = f"{REPORT}/artifacts.tar"


def judged(sandbox: JudgedSandbox, task: HarborTask, number: int) -> ByName:
    """Returns the rewards of a phase by name. Afterwards nothing runs that the policy has started;
    its files are as they were.

    Raises:
      NoVerdictError: there is no verdict on what the policy did, but one on the untouched task.
      VerifierError: the phase could not be judged.
    """
    check = task.phases[number].check
    try:
        for hook in check.hooks:
            sandbox.exec(hook.command, hook.seconds, cwd=task.place.layout.workdir)
        if check.layout:
            found = _apart(sandbox, check, is_last=number + 1 == len(task.phases))
        else:
            verifier = _verifier(check, sandbox)
            found = judge(sandbox, verifier, lambda: _again(sandbox, task, number), by_name=True)
    except (SandboxError, OSError) as error:
        raise VerifierError(f"task {task.name}: {error}") from error
    if found.no_verdict:
        raise NoVerdictError(f"task {task.name}: {found.no_verdict}")
    return found.rewards


def _again(sandbox: JudgedSandbox, task: HarborTask, number: int) -> None:
    if fault := prepare(sandbox, task, number):
        raise SandboxError(fault)


def _verifier(check: Check, sandbox: JudgedSandbox) -> Verifier:
    files = {path: leaf.content for path, leaf in check.tests.items()}
    network = check.reach.policy(sandbox.spec.network)
    if check.pytest:
        return pytest_verifier(files, [check.pytest], check.workdir, check.seconds, network)
    executable = [path for path, leaf in check.tests.items() if leaf.is_executable and path != TEST]
    executable.append(TEST)
    marked = " ".join(shlex.quote(f"{TESTS}/{path}") for path in executable)
    return Verifier(
        files=None if check.image else files,
        command=f"chmod +x {marked} && {TESTS}/{TEST}",
        evidence=Evidence.REPORT,
        tests=TESTS,
        report=REPORT,
        cwd=check.workdir,
        env=check.env,
        seconds=check.seconds,
        network=network,
    )


def _apart(sandbox: JudgedSandbox, check: Check, is_last: bool) -> Judgement:
    """Judges the artifacts alone, on a machine where nothing of the policy has run. Of an image of
    its own, the sandbox goes back to that of the policy with its next reset."""
    archives, directories = _collected(sandbox, check.artifacts)
    saved = b"" if is_last else sandbox.snapshot()

    def restore() -> None:  # the machine is new
        assert check.layout
        lay(sandbox, check.layout.files)

    sandbox.renew(check.image)
    try:
        restore()
        for directory in directories:
            sandbox.replace_directory(directory, {})
        for archive in archives:
            unpack(sandbox, archive)
        return judge(sandbox, _verifier(check, sandbox), restore, True, check.image)
    finally:
        if not is_last:
            sandbox.restore(saved)


def _collected(
    sandbox: JudgedSandbox, artifacts: Sequence[Artifact]
) -> tuple[list[bytes], list[str]]:
    """Returns archives of what there is of the artifacts, and which of them are directories.
    NoVerdictError if they are larger than a directory of the sandbox."""
    sandbox.kill_processes()
    limit = sandbox.spec.files_mb << 20
    archives, directories = [], []
    for artifact in artifacts:
        sandbox.replace_directory(REPORT, {})  # a file system that the policy has not filled
        path = artifact.source.lstrip("/")
        excluded = [f"--exclude={pattern}" for pattern in artifact.exclude]
        argv = ["tar", "-c", "-f", ARCHIVE, "-C", "/", *excluded]
        env = {"PATH": trusted_path(sandbox.spec.writable)}
        done = sandbox.exec([*argv, "--", path], LAY_S, cwd="/", env=env)
        if sandbox.exec(["test", "-e", artifact.source], cwd="/", env=env).exit_code:
            continue
        if done.exit_code:
            raise NoVerdictError(f"artifact {artifact.source} cannot be packed: {done.stderr:.200}")
        try:
            archives.append(cleaned(sandbox.read(ARCHIVE, limit), [artifact.source]))
        except ValueError as error:
            raise NoVerdictError(f"artifact {artifact.source}: {error}") from error
        is_directory = sandbox.exec(["test", "-d", artifact.source], cwd="/", env=env)
        if is_directory.exit_code == 0:
            directories.append(artifact.source)
    return archives, directories
