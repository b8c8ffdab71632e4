"""Programs of replies, judged by the tests of a row in a real sandbox."""

import json

import pytest

from ale_jax.config.build import build_domain
from ale_jax.records import Task
from ale_jax.worlds.api import NoVerdictError, VerifierError
from ale_jax.worlds.bridges.program_tests import SPEC
from ale_jax.worlds.families import Families
from ale_jax.worlds.items import TRAIN
from tests.runtimes import picked, play_on, started_to_judge

pytestmark = pytest.mark.heavy

HUMANEVAL = {
    "prompt": 'def double(x):\n    """Twice x."""\n',
    "canonical_solution": "    return 2 * x\n",
    "entry_point": "double",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(-1) == -2\n",
}
HUMANEVAL_OPTIONS = {"prompt": "{prompt}", "start": "prompt", "entry_point": "entry_point"} | {
    "answer": "canonical_solution",
    "tests": "test",
}
MBPP = {
    "text": "Write test_double.",
    "code": "def test_double(x):\r\n  return two * x",
    "test_setup_code": "two = 2",
    "test_list": ["assert test_double(2) == 4", "assert test_double(-1) == -2"],
}
MBPP_OPTIONS = {"prompt": "{text}", "answer": "code", "tests": "test_list"} | {
    "setup": "test_setup_code"
}
BIGCODEBENCH = {
    "instruct_prompt": "Write task_func.",
    "code_prompt": "import math\ndef task_func(x):\n",
    "canonical_solution": "    return math.floor(2 * x)",
    "test": "import unittest\n\n\nclass TestCases(unittest.TestCase):"
    "\n    def test_two(self):\n        self.assertEqual(task_func(2), 4)\n"
    "    def test_floor(self):\n        self.assertEqual(task_func(1.2), 2)\n",
}
BIGCODEBENCH_OPTIONS = {"prompt": "{instruct_prompt}", "answer": "canonical_solution"} | {
    "start": "code_prompt",
    "tests": "test",
}
SETS = {
    "humaneval": (HUMANEVAL, HUMANEVAL_OPTIONS),
    "mbpp": (MBPP, MBPP_OPTIONS),
    "bigcodebench": (BIGCODEBENCH, BIGCODEBENCH_OPTIONS),
}
WRONG = {
    "humaneval": "def double(x): return 4",
    "mbpp": "def test_double(x): return 4",
    "bigcodebench": "def task_func(x): return 2 * x",
}
HOSTILE = {
    "nothing": "",
    "no program": "def (",
    "exits": "import sys; sys.exit(0)",
    "skips": "import pytest; pytest.skip('so', allow_module_level=True)",
    "other tests": "def test_other(): pass\nclass TestOther:\n    def test(self): pass",
    "own check": "def check(candidate): pass\nclass TestCases: pass",
    "a forged verdict": "import os\nfor fd in range(3, 30):\n    try:\n"
    "        os.write(fd, b'{\"reward\": 1.0}')\n    except OSError:\n        pass",
}
LEAVES = "import os; os._exit(0)"  # with the code of tests that have passed


def pytest_generate_tests(metafunc):
    if "runtime" in metafunc.fixturenames:
        play_on(metafunc, "runtime", both=True)


@pytest.fixture(scope="session")
def runtime(request):
    return picked(request.param, SPEC)


@pytest.fixture(scope="module")
def box(runtime):
    with started_to_judge(runtime, SPEC) as sandbox:
        yield sandbox


def family_of(folder, row, options):
    (folder / "set.jsonl").write_text(json.dumps(row))
    options = {"path": "set.jsonl", "check": "tests", "eval_share": 0.0} | options
    (family,) = Families([build_domain({"world": "rows", "options": options})], str(folder))
    return family


def reward(family, reply, box):
    world = family.checked(Task(family.name, family.items.train(0, 0, 0), TRAIN), box)
    world.reset()
    return world.step(reply).reward


@pytest.mark.parametrize("name", SETS)
def test_the_formats_of_published_sets_are_judged(name, box, tmp_path):
    family = family_of(tmp_path, *SETS[name])
    (oracle,) = family.oracle(Task(family.name, family.items.train(0, 0, 0), TRAIN))
    assert reward(family, oracle, box) == 1.0
    assert reward(family, f"Here it is:\n```python\n{WRONG[name]}\n```\nGood luck!", box) == 0.0


@pytest.mark.parametrize("name", SETS)
def test_a_hostile_program_earns_nothing(name, box, tmp_path):
    family = family_of(tmp_path, *SETS[name])
    for how, program in HOSTILE.items():
        try:
            earned = reward(family, f"```python\n{program}\n```", box)
        except NoVerdictError:
            earned = 0.0
        assert earned == 0.0, how


def test_a_whole_function_may_repeat_the_start(box, tmp_path):
    program = HUMANEVAL["prompt"] + HUMANEVAL["canonical_solution"]
    family = family_of(tmp_path, *SETS["humaneval"])
    assert reward(family, f"```python\n{program}```", box) == 1.0


def test_functions_of_the_program_are_no_tests(box, tmp_path):
    program = "    return int(2 * x)\n\ndef test_mine(missing):\n    pass"
    family = family_of(tmp_path, *SETS["bigcodebench"])
    assert reward(family, f"```python\n{program}\n```", box) == 1.0


@pytest.mark.parametrize("program", [LEAVES, "while True: pass"])
def test_a_program_that_keeps_the_tests_from_a_verdict_fails(program, box, tmp_path):
    family = family_of(tmp_path, MBPP, MBPP_OPTIONS | {"seconds": 3.0})
    with pytest.raises(NoVerdictError):
        reward(family, program, box)


def test_tests_that_never_end_are_no_verdict_on_the_program(box, tmp_path):
    row = MBPP | {"test_setup_code": "while True: pass"}
    family = family_of(tmp_path, row, MBPP_OPTIONS | {"seconds": 3.0})
    with pytest.raises(VerifierError, match="untouched"):
        reward(family, MBPP["code"], box)
