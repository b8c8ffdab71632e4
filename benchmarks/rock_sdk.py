"""Runs ROCK's own tests of its SDK, unchanged, against our service, and reports what fails and why.

    python -m benchmarks.rock_sdk FOLDER [--runtime docker] [--python PYTHON] [--quick]

FOLDER is a checkout of ROCK, of which only `tests/` is used. The SDK is the published rl-rock, in a
separate environment. The exit code is 1 if less than 90 % pass. --quick leaves out tests that wait
for background processes, which the SDK polls every 10 s.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.launching import interruptible

BAR = 0.9
SDK = "rl-rock==1.11.0"
# The SDK, and what ROCK's tests import as well.
PACKAGES = (SDK, "gem-llm==0.1.0", "pytest", "pytest-asyncio", "fastapi", "uvicorn", "httpx")
VENV = Path(".cache/rock_sdk")
IMAGE = "ale-shell"  # what our service takes for python:3.11
START_S, TESTS_S = 120.0, 1200.0

TESTS = Path("tests/integration")
SANDBOX = "sdk/sandbox/test_"
RUN = (
    *(f"{SANDBOX}{name}.py" for name in ("basic", "sdk_client", "file_system", "close_session")),
    *(f"{SANDBOX}remote_user.py", f"{SANDBOX}exception.py", "sdk/envs/test_gem.py"),
)
NO_SERVICE = "starts ROCK's own server, and asks no service"
LEFT_OUT = {
    f"{SANDBOX}sdk_client.py::test_update_mount": "asserts files of ROCK's own that it mounts",
    f"{SANDBOX}sdk_client.py::test_docker_registry_login": "needs the images registry:2, httpd:2",
    f"{SANDBOX}file_system.py::test_download_file": "installs ossutil from the internet, inside",
    "rocklet/test_server.py": NO_SERVICE,
    "envhub/test_server.py": NO_SERVICE,
    "envhub/test_service.py": NO_SERVICE,
    "sdk/envhub/test_envhub_client.py": NO_SERVICE,
}
ONE_USER = "without privileges on the host, a sandbox has one user id"
OF_BUBBLEWRAP = {
    f"{SANDBOX}remote_user.py": ONE_USER,
    f"{SANDBOX}file_system.py::test_dirs_chown": ONE_USER,
    f"{SANDBOX}sdk_client.py::test_sandbox_get_status": "bubblewrap has no images to miss",
}
SLOW = {
    f"{SANDBOX}sdk_client.py::test_arun_{name}": "takes longer (--quick)"
    for name in ("nohup", "timeout", "ignore_output")
}
WHY_FAILED = {
    "test_arun_timeout": "wants a command to hang for 30 s, as in ROCK; here it ends at once",
}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a checkout of ROCK")
    parser.add_argument("--runtime", default="docker", choices=("docker", "bubblewrap"))
    parser.add_argument("--python", help=f"of an environment with {', '.join(PACKAGES)}")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(argv)
    if not (options.folder / TESTS / RUN[0]).is_file():
        parser.error(f"{options.folder} is not a checkout of ROCK: {TESTS / RUN[0]} is missing")
    python = options.python or make_environment()
    left_out = LEFT_OUT | (OF_BUBBLEWRAP if options.runtime == "bubblewrap" else {})
    left_out |= SLOW if options.quick else {}
    with interruptible(), served(options.runtime, python) as url:
        outcomes = run_tests(options.folder, python, url, left_out)
    show(outcomes, left_out)
    passed = sum(not reason for reason in outcomes.values())
    result = {
        "benchmark": "rock_sdk",
        "command": f"python -m benchmarks.rock_sdk FOLDER --runtime={options.runtime}",
        "runtime": options.runtime,
        "sdk": SDK,
        "passed": passed,
        "run": len(outcomes),
        "failed": {name: reason for name, reason in outcomes.items() if reason},
        "left_out": left_out,
        "hardware": f"{os.cpu_count()} CPU cores, {platform.machine()}",
    }
    print(json.dumps(result))
    return 0 if outcomes and passed >= BAR * len(outcomes) else 1


def make_environment() -> str:
    """The Python of VENV, which is created if it is missing."""
    python = VENV.absolute() / "bin/python"
    mark = VENV / "installed"
    if not mark.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
        options = os.environ.get("PIP_OPTIONS", "").split()
        line = [python, "-m", "pip", "install", "--quiet", *options, *PACKAGES]
        subprocess.run(line, check=True, stdout=sys.stderr)
        mark.touch()
    return str(python)


@contextlib.contextmanager
def served(runtime: str, python: str) -> Iterator[str]:
    """The URL of our service with its routes for ROCK and GEM. It needs no token, because ROCK's
    tests send none."""
    line = [sys.executable, "-m", "ale_jax.envs.serve", "--rock", "--port=0"]
    line += [f"--runtime={runtime}", f"--gem-python={python}"]
    service = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    try:
        found = re.match(r"http://\S+", service.stdout.readline())
        if not found:
            raise SystemExit("the service did not start; see its output above")
        yield found[0]
    finally:
        service.terminate()
        service.wait(START_S)


def run_tests(folder: Path, python: str, url: str, left_out: Mapping[str, str]) -> dict[str, str]:
    """The tests that were run, with the reason if one did not pass; an empty reason if it did."""
    with tempfile.TemporaryDirectory() as place:
        # They are copied away from ROCK's source, so that they import the published SDK.
        shutil.copytree(folder / "tests", Path(place, "tests"))
        line = [python, "-m", "pytest", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider"]
        line += ["--tb=short", "--junitxml=results.xml", *(str(TESTS / file) for file in RUN)]
        line += [f"--deselect={TESTS / name}" for name in left_out]
        environment = {n: v for n, v in os.environ.items() if n != "PYTHONPATH"}
        environment["ROCK_TEST_ADMIN_BASE_URL"] = url
        environment["ROCK_ENVHUB_DEFAULT_DOCKER_IMAGE"] = IMAGE  # they skip if there is none
        subprocess.run(line, cwd=place, env=environment, stdout=sys.stderr, timeout=TESTS_S)
        cases = ElementTree.parse(Path(place, "results.xml")).iter("testcase")
        return dict(outcome(case) for case in cases)


def outcome(case: ElementTree.Element) -> tuple[str, str]:
    name = case.get("name")
    for trouble in case:
        if trouble.tag in ("failure", "error", "skipped"):
            told = (trouble.get("message") or "").strip().partition("\n")[0][:200]
            return name, WHY_FAILED.get(name, f"{trouble.tag}: {told}")
    return name, ""


def show(outcomes: Mapping[str, str], left_out: Mapping[str, str]) -> None:
    lines = [(name, "failed" if reason else "passed", reason) for name, reason in outcomes.items()]
    lines += [(name, "left out", reason) for name, reason in left_out.items()]
    width = max(len(name) for name, *_ in lines)
    for name, what, reason in lines:
        print(f"{name:{width}}  {what:8}  {reason}".rstrip())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
