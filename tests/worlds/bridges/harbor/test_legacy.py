"""Folders of terminal-bench: what can be played is read, all else is refused by its name."""

import os

import pytest

from ale_jax.worlds.bridges.harbor.dockerfile import Layout, Source
from ale_jax.worlds.bridges.harbor.registry import task_folders
from ale_jax.worlds.bridges.harbor.task import read_task, read_tasks
from ale_jax.worlds.bridges.harbor.trees import Leaf
from tests.worlds.bridges.harbor.legacy_folders import RUN_TESTS, SOLUTION, TASK, TEST, write_task


def test_a_folder_becomes_a_task(tmp_path):
    task = read_task(Source(write_task(tmp_path / "7", {"tests/data/x.csv": "1,2"})))
    (phase,) = task.phases
    assert (task.name, task.metadata["difficulty"]) == ("7", "easy")
    assert (task.place.image, task.place.layout) == ("", Layout("/app"))
    assert phase.instruction == "Write a function `double` into /app/solution.py."
    assert phase.solution == {"solve.sh": Leaf(SOLUTION.encode())}
    assert phase.check.tests == {
        "test_outputs.py": Leaf(TEST.encode()),
        "data/x.csv": Leaf(b"1,2"),
    }
    assert phase.check.pytest == "test_outputs.py"
    assert (phase.seconds, phase.check.seconds) == (20.0, 30.0)


def test_what_a_task_does_not_say_is_as_in_terminal_bench(tmp_path):
    bare = {"task.yaml": "instruction: do it", "Dockerfile": None, "docker-compose.yaml": None}
    task = read_task(Source(write_task(tmp_path / "7", bare)))
    (phase,) = task.phases
    assert (phase.instruction, phase.seconds, phase.check.seconds) == ("do it", 360.0, 60.0)
    assert task.place.layout == Layout("/app")


def test_a_task_may_have_an_image_that_was_built(tmp_path):
    built = {"Dockerfile": "FROM x\nRUN make\nWORKDIR /srv\n"}
    place = read_task(Source(write_task(tmp_path / "Seven", built), "host:5000/seven")).place
    assert (place.image, place.layout) == ("host:5000/seven", Layout("/srv"))


@pytest.mark.parametrize(
    "line",
    [
        "pytest /tests/test_outputs.py",
        "python3 -m pytest $TEST_DIR/test_outputs.py -q -rA",
        'set -euo pipefail\nuv run pytest "$TEST_DIR/test_outputs.py"\n\n',
    ],
)
def test_ways_to_run_pytest(tmp_path, line):
    assert (
        read_task(Source(write_task(tmp_path, {"run-tests.sh": line}))).phases[0].check.pytest
        == "test_outputs.py"
    )


def sources(folder):
    return [Source(each) for each in task_folders(folder, "")]


BROKEN = {
    "no task.yaml": ({"task.yaml": None}, "there is neither task.toml nor task.yaml"),
    "no solution": ({"solution.sh": None}, "solution.sh is missing"),
    "no run-tests.sh": ({"run-tests.sh": None}, "run-tests.sh is missing"),
    "no tests": ({"tests/test_outputs.py": None}, "runs tests/test_outputs.py, which does"),
    "no yaml": ({"task.yaml": "a: [b"}, "task.yaml is damaged"),
    "deep yaml": ({"task.yaml": "[" * 5000}, "task.yaml is damaged"),
    "values without end": (
        {
            "task.yaml": "\n".join(
                [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
            ).replace("*a0", "x")
            + "\ninstruction: *a29"
        },
        r"instruction \[\[\[",
    ),
    "code in yaml": ({"task.yaml": "!!python/object/apply:os.getcwd []"}, "task.yaml is damaged"),
    "a list": ({"task.yaml": "- a"}, "task.yaml must hold fields, holds list"),
    "no text": ({"task.yaml": "a: \xff"}, "instruction is missing"),
    "no instruction": ({"task.yaml": "tags: []"}, "instruction is missing"),
    "blank instruction": ({"task.yaml": "instruction: ' '"}, "instruction is missing"),
    "a number to do": ({"task.yaml": "instruction: 7"}, "instruction 7 must be text"),
    "a slip": ({"task.yaml": f"{TASK}max_test_timout_sec: 9"}, "did you mean 'max_test_timeout_s"),
    "another parser": (
        {"task.yaml": "instruction: x\nparser_name: swe"},
        "parser_name 'swe' .* only 'pytest'",
    ),
    "the agent's shell": (
        {"task.yaml": f"{TASK}run_tests_in_same_shell: true"},
        "run_tests_in_same_shell True runs the tests",
    ),
    "no time": ({"task.yaml": "instruction: x\nmax_test_timeout_sec: 0"}, "max_test_timeout_sec 0"),
    "time in words": (
        {"task.yaml": "instruction: x\nmax_agent_timeout_sec: long"},
        "max_agent_timeout_sec 'long'",
    ),
    "endless time": (
        {"task.yaml": "instruction: x\nmax_agent_timeout_sec: .inf"},
        "must be a number, and not below 0",
    ),
    "an image of its own": (
        {"Dockerfile": "FROM x\nWORKDIR /app\nRUN apt-get install -y gcc"},
        "Dockerfile: 'RUN apt-get install -y gcc' makes an image of its own: build it",
    ),
    "a file above": (
        {"Dockerfile": "FROM x\nWORKDIR /app\nCOPY ../x ./\n"},
        r"Dockerfile: 'COPY ../x ./' copies from outside of its folder",
    ),
    "another service": ({"docker-compose.yaml": "services: {client: {}, db: {}}"}, "only a 'cli"),
    "tests that do more": (
        {"run-tests.sh": RUN_TESTS.replace("uv init", "rm -rf build && make")},
        "run-tests.sh does more .*: 'rm -rf build && make'",
    ),
    "tests that fetch more": (
        {"run-tests.sh": RUN_TESTS.replace("pytest==8.4.1", "pytest==8.4.1 numpy")},
        "'uv add pytest==8.4.1 numpy'",
    ),
    "an echo that does more": (
        {"run-tests.sh": 'echo "Error: $(make)"\npytest /tests/test_outputs.py'},
        "does more",
    ),
    "tests with another end": (
        {"run-tests.sh": "pytest /tests/test_outputs.py || true"},
        "does not end by running pytest",
    ),
    "no tests are run": ({"run-tests.sh": "# nothing"}, "does not end by running pytest: ''"),
    "tests elsewhere": ({"run-tests.sh": "pytest /app/test_outputs.py"}, "does not end by"),
    "tests above": ({"run-tests.sh": "pytest /tests/../x.py"}, "runs tests/../x.py, which does"),
    "a huge solution": ({"solution.sh": "#" * (33 << 20)}, "solution.sh is too large"),
    "huge tests": ({"tests/a": "#" * (20 << 20), "tests/b": "#" * (20 << 20)}, "is too large"),
}


@pytest.mark.parametrize(("changes", "fault"), BROKEN.values(), ids=BROKEN)
def test_what_cannot_be_played_is_refused_by_its_name(tmp_path, changes, fault):
    folder = write_task(tmp_path / "seven", changes)
    with pytest.raises(ValueError, match=rf"task .*/seven: .*(?:{fault})"):
        read_task(Source(folder))


@pytest.mark.parametrize("name", ["solution.sh", "task.yaml", "tests/test_outputs.py"])
@pytest.mark.parametrize("kind", ["link", "broken link", "pipe", "directory"])
def test_what_is_no_file_is_not_read(tmp_path, name, kind):
    path = write_task(tmp_path / "seven") / name
    (tmp_path / "real").write_bytes(path.read_bytes())
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / ("real" if kind == "link" else "nowhere"))
    with pytest.raises(ValueError, match=r"not a regular file|does not exist"):
        read_task(Source(tmp_path / "seven"))


def test_a_link_to_a_folder_of_tests_is_refused(tmp_path):
    folder = write_task(tmp_path / "seven")
    (folder / "tests" / "more").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="more is not a regular file"):
        read_task(Source(folder))


def test_tests_that_are_a_link_are_refused(tmp_path):
    folder = write_task(tmp_path / "seven")
    (folder / "tests").rename(tmp_path / "elsewhere")
    (folder / "tests").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="seven: tests is a link"):
        read_task(Source(folder))


def test_too_many_tests_are_refused(tmp_path):
    folder = write_task(tmp_path / "seven", {f"tests/{n}": "" for n in range(1001)})
    with pytest.raises(ValueError, match="more than 1000 files"):
        read_task(Source(folder))


def test_tasks_come_in_the_order_of_their_numbers(tmp_path):
    for name in ("10", "9", "b", "2"):
        write_task(tmp_path / name)
    (tmp_path / "README.md").write_text("not a task")
    assert [task.name for task in read_tasks(sources(tmp_path))] == ["b", "2", "9", "10"]
    assert [task.name for task in read_tasks(sources(tmp_path), exclude=["9", "b"])] == [
        "2",
        "10",
    ]


def test_every_folder_that_cannot_be_played_is_named(tmp_path):
    write_task(tmp_path / "fine")
    write_task(tmp_path / "first", {"solution.sh": None})
    write_task(tmp_path / "second", {"run-tests.sh": None})
    with pytest.raises(ValueError) as refusal:
        read_tasks(sources(tmp_path))
    first, second = str(refusal.value).splitlines()
    assert "/first: solution.sh is missing" in first
    assert "/second: run-tests.sh is missing" in second
    assert [task.name for task in read_tasks(sources(tmp_path), exclude=["first", "second"])] == [
        "fine"
    ]


def test_a_folder_without_tasks_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no task"):
        read_tasks(sources(tmp_path))
    with pytest.raises(ValueError, match="does not exist"):
        task_folders(tmp_path / "nowhere", "")


def test_what_is_left_out_has_to_be_there(tmp_path):
    write_task(tmp_path / "1")
    with pytest.raises(ValueError, match="exclude 2: there are no such tasks"):
        read_tasks(sources(tmp_path), exclude=["2"])
