"""Tests that import the agent's module: what it does on import, or left lying about, earns nothing.

The task: /app/solution.py with a function `double`.
"""

import dataclasses

import pytest

from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.verify.verifier import (
    REMEDY,
    Verifier,
    VerifierFailed,
    VerifierTimedOut,
    has_pytest,
    judge,
    pytest_verifier,
    verify,
)
from tests.runtimes import PROBES
from tests.sandbox.verify import conftest

SPEC = dataclasses.replace(conftest.SPEC, memory_mb=256, env=(("PYTHONPATH", "/app"),))
TEST = b"""
import importlib.util

def load():
    spec = importlib.util.spec_from_file_location("solution", "/app/solution.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

def test_one():
    assert load().double(1) == 2

def test_text():
    assert load().double("a") == "aa"
"""
RIGHT = "def double(x):\n    return x + x\n"
WRONG = "def double(x):\n    return 2\n"
NO_VERDICT = None


@pytest.fixture(scope="session")
def pytest_runtime(request):
    if reason := PROBES[request.param](SPEC):
        pytest.skip(f"{request.param}: {reason}")
    return pick_runtime(request.param, SPEC)


@pytest.fixture(scope="session", params=["agent", "root"])
def shared_box(pytest_runtime, request):
    spec = dataclasses.replace(SPEC, user=request.param)
    with pytest_runtime.start(spec, {"run": "tests"}) as sandbox:
        if not has_pytest(sandbox):
            pytest.skip(f"{pytest_runtime.name}: {REMEDY}; or type: make runtimes")
        yield sandbox


def put(box, files: dict[str, str]) -> None:
    """Leaves `files` in /app, as the agent."""
    box.replace_directory("/app", {name: text.encode() for name, text in files.items()})


def verifier_of(test: bytes = TEST, seconds: float = 20.0) -> Verifier:
    return pytest_verifier({"test_it.py": test}, ["test_it.py"], "/app", seconds)


def earned(box, files: dict[str, str] | None = None, test: bytes = TEST):
    """The reward of what the agent left in /app, NO_VERDICT if there is none."""
    put(box, files or {})
    try:
        return verify(box, verifier_of(test)).reward
    except VerifierTimedOut:
        raise
    except VerifierFailed:
        return NO_VERDICT


@pytest.mark.heavy
@pytest.mark.each_runtime
def test_the_reward_is_1_if_all_tests_pass(box):
    assert earned(box, {"solution.py": RIGHT}) == 1.0
    assert earned(box, {"solution.py": WRONG}) == 0.0
    assert earned(box) == 0.0


ON_IMPORT = {
    "ends the process": ("import os; os._exit(0)", NO_VERDICT),
    "exits": ("import sys; sys.exit(0)", 0.0),
    "skips": ("import pytest; pytest.skip('no', allow_module_level=True)", 0.0),
    "expects its failure": ("import pytest; pytest.xfail('no')", 0.0),
    "ends pytest": ("import pytest; pytest.exit('done', returncode=0)", 0.0),
    "interrupts": ("raise KeyboardInterrupt", NO_VERDICT),
    "kills": ("import os; os.kill(os.getpid(), 9)", NO_VERDICT),
    "says so": ("print('2 passed'); print('PASSED test_it.py::test_one')", 0.0),
    "writes the report at the end": (
        "import atexit; atexit.register(lambda: open('/logs/verifier/reward.json', 'w')"
        ".write('{\"reward\": 1}'))",
        0.0,
    ),
    "writes the report and ends the process with another code": (
        "import os; open('/logs/verifier/reward.json', 'w').write('{\"reward\": 1}'); os._exit(3)",
        NO_VERDICT,
    ),
    "leaves a thread": (
        "import threading, time; threading.Thread(target=time.sleep, args=(999,)).start()",
        0.0,
    ),
    "removes the tests": ("import shutil; shutil.rmtree('/tests', ignore_errors=True)", 0.0),
}


@pytest.mark.parametrize(("deed", "reward"), ON_IMPORT.values(), ids=ON_IMPORT)
def test_what_a_wrong_solution_does_when_it_is_imported(box, deed, reward):
    assert earned(box, {"solution.py": f"{WRONG}{deed}\n"}) == reward


def test_a_right_solution_that_leaves_a_thread_running(box):
    thread = "import threading, time; threading.Thread(target=time.sleep, args=(999,)).start()"
    assert earned(box, {"solution.py": f"{RIGHT}{thread}\n"}) == 1.0


def test_a_solution_without_end_is_no_verdict(box):
    put(box, {"solution.py": "while True: pass"})
    with pytest.raises(VerifierTimedOut):
        verify(box, verifier_of(seconds=1.5))


# Each is played on import, and as a program that a test starts.
FORGES = {
    "the report": (
        "open('/logs/verifier/reward.json', 'w').write('{\"reward\": 1}');"
        "open('/logs/verifier/reward.txt', 'w').write('1'); os._exit(0)"
    ),
    "every descriptor of every process": (
        "import glob\n"
        "for path in glob.glob('/proc/[0-9]*/fd/*'):\n"
        "    try: os.write(os.open(path, os.O_WRONLY | os.O_NONBLOCK), b'{\"reward\": 1.0}\\n')\n"
        "    except OSError: pass\n"
        "os._exit(0)"
    ),
    "counts without the number": (
        "import struct\n"
        "for fd in range(3, 64):\n"
        "    try: os.write(fd, bytes(16) + struct.pack('<III', 2, 0, 2))\n"
        "    except OSError: pass\n"
        "os._exit(0)"
    ),
    "what the parent calls": (
        "import sys; main = sys.modules['__main__']; main.all_passed = lambda *counts: True;"
        "main.COUNTS = main.PASSED = main.FAILED = main.json = None"
    ),
    "the tests": (
        "import glob\n"
        "for path in glob.glob('/tests/*'): open(path, 'w').write('def test_one(): pass')"
    ),
}
STARTS = b"""
import subprocess
def test_one():
    done = subprocess.run(["python3", "/app/solution.py"], capture_output=True, text=True)
    assert done.stdout == "42"
"""


@pytest.mark.parametrize("test", [TEST, STARTS], ids=["imported", "started"])
@pytest.mark.parametrize("forge", FORGES.values(), ids=FORGES)
def test_a_forged_report_earns_nothing(box, forge, test):
    put(box, {"solution.py": f"{WRONG}import os; {forge}\n"})
    earns = judge(box, verifier_of(test), lambda: put(box, {}))
    assert earns.reward == 0.0


MEMORY = """
import os
def parents(pid):
    while pid > 1:
        pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
        yield pid
opened = []
for pid in parents(os.getpid()):
    for name in ("mem", "environ", *(f"fd/{fd}" for fd in range(32))):
        try: opened.append(open(f"/proc/{pid}/{name}", "rb"))
        except OSError: pass
print(opened or 42, end="")
"""


@pytest.mark.each_runtime
def test_what_the_tests_start_can_open_no_process_above_it(box):
    assert earned(box, {"solution.py": MEMORY}, STARTS) == 1.0


def test_code_in_the_tests_own_process_can_still_find_the_number_and_forge_the_counts(box):
    """The limit that the docstring of the package states."""
    forge = (
        "import os, struct, sys\n"
        "frame = sys._getframe()\n"
        "while 'nonce' not in frame.f_locals: frame = frame.f_back\n"
        "known = frame.f_locals\n"
        "os.write(known['counts_w'], known['nonce'] + struct.pack('<III', 2, 0, 2))\n"
        "os._exit(0)\n"
    )
    assert earned(box, {"solution.py": forge}) == 1.0


PASSES_ALL = """
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    (yield).get_result().outcome = "passed"
"""
SETTINGS = {
    "conftest.py": PASSES_ALL,
    "pytest.ini": "[pytest]\naddopts = --collect-only -p solution\n",
    "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--collect-only'\n",
    "tox.ini": "[pytest]\naddopts = --collect-only\n",
}
MODULES = ("pytest", "json", "os", "sitecustomize", "usercustomize")


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(("solution", "reward"), [(RIGHT, 1.0), (WRONG, 0.0)], ids=["1", "0"])
def test_files_that_pytest_or_python_would_read(box, name, solution, reward):
    box.run("export PYTEST_ADDOPTS=--collect-only PYTEST_PLUGINS=solution PYTHONPATH=/app")
    box.run("printf '[pytest]\\naddopts = --collect-only\\n' > ~/pytest.ini")
    modules = {f"{module}.py": "import os; os._exit(0)" for module in MODULES}
    assert earned(box, {"solution.py": solution, name: SETTINGS[name], **modules}) == reward


@pytest.mark.parametrize(
    ("test", "reward"),
    [
        (b"", NO_VERDICT),  # nothing is collected
        (b"def test_it(:", 0.0),  # cannot be collected: as a test whose import fails
        (b"import solution_that_is_not_there", 0.0),
        (b"import pytest\n@pytest.mark.skip\ndef test_it(): pass", 0.0),
        (b"def test_it(tmp_path): (tmp_path / 'x').write_text('x')", 1.0),
        (b"import os\ndef test_it(): assert os.getcwd() == '/app'", 1.0),
        (b"import os\ndef test_it(): assert os.environ['TEST_DIR'] == '/tests'", 1.0),
        (b"import sys\ndef test_it(): assert '/app' not in sys.path", 1.0),
        (b"def test_a(): pass\ndef test_b(): assert 0", 0.0),
    ],
)
def test_what_is_in_a_test(box, test, reward):
    assert earned(box, test=test) == reward


def test_settings_and_fixtures_of_the_tests_own_are_theirs(box):
    fixture = b"import pytest\n@pytest.fixture\ndef six(): return 6"
    files = {
        "conftest.py": fixture,
        "pytest.ini": b"[pytest]\npython_functions = check_*",
        "test_it.py": b"def check_it(six): assert six == 6\ndef test_not_meant(): assert 0",
    }
    rewards = verify(box, pytest_verifier(files, ["test_it.py"], "/app", 20.0)).rewards
    assert rewards == {"reward": 1.0, "collected": 1.0, "broken": 0.0, "passed": 1.0}


def test_a_file_that_is_not_there_is_no_verdict(box):
    with pytest.raises(VerifierFailed, match="no report"):
        verify(box, pytest_verifier({}, ["test_it.py"], "/app", 20.0))


def test_the_report_counts(box):
    box.replace_directory("/app", {"solution.py": WRONG.encode()})
    verdict = verify(box, pytest_verifier({"test_it.py": TEST}, ["test_it.py"], "/app", 20.0))
    assert verdict.rewards == {"reward": 0.0, "collected": 2.0, "broken": 0.0, "passed": 1.0}


def test_a_file_in_the_place_of_the_verifiers_own_is_refused():
    with pytest.raises(ValueError, match="rename yours"):
        pytest_verifier({"pytest_inside.py": b""}, ["test_it.py"], "/app", 20.0)


@pytest.mark.heavy
def test_a_sandbox_without_pytest_is_told_apart(empty_image):
    spec = dataclasses.replace(conftest.SPEC, image=empty_image)
    with pick_runtime("docker", spec).start(spec, {"run": "tests"}) as sandbox:
        assert not has_pytest(sandbox)
        with pytest.raises(VerifierFailed, match="no report"):
            verify(sandbox, pytest_verifier({"test_it.py": TEST}, ["test_it.py"], "/app", 20.0))
