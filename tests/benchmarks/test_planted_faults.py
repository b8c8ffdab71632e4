"""Planted faults are where and what they should be, and the tests' verdict on each is told."""

import json
import subprocess

import pytest

from benchmarks.planted_faults import trial
from benchmarks.planted_faults.__main__ import draw, main, modules_of, shares, summary
from benchmarks.planted_faults.mutations import changes_bytecode, mutations
from benchmarks.planted_faults.trial import mirroring_tests, nearest_tests, run_tests

pytestmark = pytest.mark.slow

SOURCE = b'''"""Docstring, \xc3\xa9 is two bytes: 1 < 2."""
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    LIMIT = 5
STOP_S = 1.0
@dataclasses.dataclass(frozen=True)
class A: pass
def f(a: 1 < 2, b=3) -> not 1:
    """1 + 1"""
    log.info("a", 4)
    assert a, "more than %d" % 6
    a += "\xc3\xa9"; g(a, b)
    if (a < b  # 1 <
        and not b):
        return np.maximum(a, b) * b
    while time.monotonic() < b: pass
    raise ValueError(f"{a + 1}" + "no")

if __name__ == "__main__":
    f(7, 8)
'''

EXPECTED = [
    (9, "constant", "3", "4"),
    (13, "removed statement", 'a += "é"', "pass"),
    (13, "removed statement", "g(a, b)", "pass"),
    (13, "swapped arguments", "a, b", "b, a"),
    (14, "comparison", "<", "<="),
    (14, "negated condition", "a < b  # 1 <\n        and not b", None),
    (15, "boolean", "not b", "b"),
    (16, "arithmetic", "*", "/"),
    (16, "returned value", "np.maximum(a, b) * b", "None"),
]


def test_faults_are_drawn_where_tests_should_notice_and_nowhere_else():
    found = [(m.line, m.kind, m.before, m.after) for m in mutations(SOURCE)]
    negated = "not (a < b  # 1 <\n        and not b)"
    expected = [(*each[:3], each[3] or negated) for each in EXPECTED]
    assert sorted(found) == sorted(expected)


def test_a_fault_replaces_its_bytes_and_nothing_else():
    for each in mutations(SOURCE):
        mutated = each.apply(SOURCE)
        assert SOURCE[each.start : each.end].decode() == each.before
        assert mutated[: each.start] == SOURCE[: each.start]
        assert mutated[each.start :] == each.after.encode() + SOURCE[each.end :]
        assert changes_bytecode(SOURCE, mutated)


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("a <= b", "a < b"),
        ("a > b", "a >= b"),
        ("a >= b", "a > b"),
        ("a == b", "a != b"),
        ("a != b", "a == b"),
        ("a in b", "a not in b"),
        ("a not in b", "a in b"),
        ("a is b", "a is not b"),
        ("a is not b", "a is b"),
        ("(a) + (b)", "(a) - (b)"),
        ("a - b", "a + b"),
        ("a / b", "a * b"),
        ("a and b", "a or b"),
        ("a or b", "a and b"),
        ("not(a)", "(a)"),
        ("True", "False"),
        ("2.5", "3.5"),
    ],
)
def test_each_operator_and_constant_becomes_its_counterpart(text, after):
    (mutation,) = mutations(f"x = {text}\n".encode())
    assert mutation.apply(f"x = {text}\n".encode()).decode() == f"x = {after}\n"


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        (b"x = f(a, a)\n", b"x = f(a,  a)\n", False),
        (b"x = 1\n", b"x = True\n", True),
        (b"def f():\n    return 1\n", b"def f():\n    return 2\n", True),
        (b"x = 1\n", b"x = = 1\n", False),
    ],
)
def test_a_fault_is_one_only_if_the_bytecode_differs(before, after, changes):
    assert changes_bytecode(before, after) == changes


def test_every_package_has_its_share_of_the_faults():
    lines = {"a": 1000, "b": 500, "c": 1}
    assert shares(lines, 9, seed=0) == {"a": 5, "b": 3, "c": 1}
    assert shares(lines, 3, seed=0) == {"a": 1, "b": 1, "c": 1}
    assert shares(lines, 2, seed=0) == {"a": 1, "b": 1}


TREE = {
    "ale_jax/fast/area.py": "def area(a, b):\n    return a * b\n",
    "envs/untested.py": "def widest(a, b):\n    return a < b\n",
    "tests/fast/test_other.py": "def test_nothing():\n    pass\n",
    "tests/fast/test_area.py": (
        "from ale_jax.fast.area import area\n\n\ndef test_area():\n    assert area(2, 3) == 6\n"
    ),
    "tests/envs/test_nothing.py": "def test_nothing():\n    pass\n",
}


@pytest.fixture
def tree(tmp_path):
    """Not yet known to git: a test may change it first."""
    for path, text in TREE.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def measure(tree, *arguments):
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True)
    subprocess.run(["git", "add", "."], cwd=tree, check=True)
    return main(list(arguments), root=tree)


def test_a_tested_fault_is_caught_and_an_untested_one_survives(tree, capsys):
    assert measure(tree, "--count=2", f"--out={tree}/results.json") == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found == json.loads((tree / "results.json").read_text())
    assert (found["faults"], found["caught"], found["share"]) == (2, 1, 0.5)
    assert found["by_package"]["ale_jax/fast"] == {"faults": 1, "caught": 1}
    tested, untested = found["planted"]
    assert (tested["outcome"], untested["outcome"]) == ("caught", "survived")
    assert tested["failed"] == "tests/fast/test_area.py::test_area"
    assert {path: (tree / path).read_text() for path in TREE} == TREE


def test_the_same_seed_draws_the_same_faults(tree):
    def drawn():
        return [draw(tree, modules_of(tree), 2, seed) for seed in range(20)]

    first = drawn()
    assert first == drawn()
    assert any(each != first[0] for each in first)
    assert [module for module, _ in first[0]] == ["ale_jax/fast/area.py", "envs/untested.py"]


@pytest.mark.parametrize(("other_s", "expected"), [(3.0, "hung"), (3.1, "not caught (time)")])
def test_a_run_out_of_time_is_a_hang_only_where_the_unmutated_tests_are_quick(
    tree, monkeypatch, other_s, expected
):
    monkeypatch.setattr(trial, "LIMIT_S", 8.0)
    text = "def area(a, b):\n    total = 0\n    while b:\n        b -= 1\n        total += a\n"
    text += "    return total\n"
    (tree / "ale_jax/fast/area.py").write_text(text)
    (endless,) = (m for m in mutations(text.encode()) if m.before == "b -= 1")
    seconds = {"tests/fast/test_area.py": 1.0, "tests/fast/test_other.py": other_s}
    tried, ran = trial.try_fault(tree, "ale_jax/fast/area.py", endless, seconds)
    assert (tried, ran.status) == (expected, None)
    assert (tree / "ale_jax/fast/area.py").read_text() == text


def test_what_fails_without_the_fault_as_well_makes_the_result_void(tree, capsys):
    (tree / "tests/envs/test_nothing.py").write_text("def test_nothing():\n    assert False\n")
    assert measure(tree, "--count=2") == 2
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [each["outcome"] for each in found["planted"]] == ["caught", "void"]


AREA = "from ale_jax.fast.area import area\n"
ENDS = {
    "killed": (
        "test_area.py",
        f"{AREA}import os\ndef test_area():\n    area(2, 3) == 6 or os.kill(os.getpid(), 9)\n",
        ("void", -9),
    ),
    "broken": (
        "conftest.py",
        f"{AREA}def pytest_collection_modifyitems():\n    assert area(2, 3) == 6\n",
        ("void", 3),
    ),
    "not begun": ("conftest.py", f"{AREA}assert area(2, 3) == 6\n", ("caught", 4)),
}


@pytest.mark.parametrize(("file", "text", "expected"), ENDS.values(), ids=ENDS)
def test_without_a_test_that_failed_a_fault_is_caught_only_if_pytest_cannot_begin(
    tree, file, text, expected
):
    (tree / "tests/fast" / file).write_text(text)
    outcome, ran = try_product(tree)
    assert (outcome, ran.status, ran.failed) == (*expected, "")


def test_a_fault_whose_test_cannot_be_run_without_it_in_time_is_not_caught(tree, monkeypatch):
    def soon_out_of_time(root, words, limit_s):
        return run_tests(root, words, limit_s if "-x" in words else 0.01)

    monkeypatch.setattr(trial, "run_tests", soon_out_of_time)
    outcome, ran = try_product(tree)
    assert ran.failed == "tests/fast/test_area.py::test_area"
    assert outcome == "not caught (time)"


def try_product(tree):
    """Plants the one fault in an operator of area.py."""
    module = "ale_jax/fast/area.py"
    (fault,) = (m for m in mutations((tree / module).read_bytes()) if m.before == "*")
    return trial.try_fault(tree, module, fault, {})


def test_the_share_is_of_all_faults_whatever_their_outcome():
    outcomes = ("caught", "hung", "survived", "void", "not caught (time)")
    found = summary([{"file": "a/b.py", "outcome": each} for each in outcomes], seed=0)
    assert (found["faults"], found["caught"], found["share"]) == (5, 2, 0.4)
    assert found["by_package"] == {"a": {"faults": 5, "caught": 2}}


def test_the_report_of_the_unmutated_tests_is_kept_and_taken(tree, capsys):
    report = tree / "unmutated.xml"
    assert measure(tree, "--count=2", f"--unmutated={report}") == 0
    assert trial.seconds_of(report).keys() == {path for path in TREE if path.startswith("tests")}
    assert measure(tree, "--count=2", f"--unmutated={report}", "--processes=2") == 0
    assert "unmutated tests:" not in capsys.readouterr().out.partition("caught 1 of 2")[2]


def test_the_environments_of_tests_are_in_the_copy(tree):
    (tree / ".venv-gem").mkdir()
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True)
    with trial.copy_of_tree(tree) as copy:
        assert (copy / ".venv-gem").resolve() == tree / ".venv-gem"


def test_near_files_run_first_and_of_those_the_quick_ones(tree):
    area, other = "tests/fast/test_area.py", "tests/fast/test_other.py"
    assert mirroring_tests(tree, "ale_jax/fast") == [area, other]
    assert nearest_tests(tree, "ale_jax/fast/other.py", {area: 1.0}) == [other, area]
    assert nearest_tests(tree, "ale_jax/fast/none.py", {other: 1.0}) == [other, area]
    both = {area: 2.0, other: 1.0}
    assert nearest_tests(tree, "ale_jax/fast/none.py", both) == [other, area]


def test_tests_of_another_package_that_import_the_module_judge_it_too(tree):
    importing = tree / "tests/envs/test_importing.py"
    importing.write_text("from ale_jax.fast.area import area\n")
    own, other = "tests/fast/test_area.py", "tests/fast/test_other.py"
    found = nearest_tests(tree, "ale_jax/fast/area.py", {})
    assert found == [own, "tests/envs/test_importing.py", other]


def test_slow_tests_judge_nothing(tree, capsys):
    test = tree / "tests/fast/test_area.py"
    test.write_text(test.read_text().replace("def test_area", "@pytest.mark.slow\ndef test_area"))
    test.write_text(f"import pytest\n{test.read_text()}")
    (tree / "envs/untested.py").unlink()
    assert measure(tree, "--count=1") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["caught"] == 0


def test_a_package_without_a_test_folder_has_those_of_the_one_above(tree):
    (tree / "tests/fast/deeper").mkdir()
    (tree / "tests/fast/deeper/test_it.py").write_text("from ale_jax.fast.inner import it\n")
    above = mirroring_tests(tree, "ale_jax/fast")
    assert mirroring_tests(tree, "ale_jax/fast/inner") == ["tests/fast/deeper/test_it.py", *above]
