"""The file tools stay below the working directory, and change only what was meant."""

import asyncio
import os
import subprocess

import pytest

from ale_jax.agent.assistant.tools.files import EditTool, ReadTool, WriteTool
from ale_jax.agent.assistant.tools.search import SearchTool
from ale_jax.agent.assistant.tools.tool import ToolError
from ale_jax.agent.assistant.workspace import MAX_FILE_BYTES, Workspace

CALLS = (
    (ReadTool, {}),
    (WriteTool, {"content": "x"}),
    (EditTool, {"old": "s", "new": "x"}),
    (SearchTool, {}),
)


def use(tool, **arguments):
    return asyncio.run(tool.run(arguments, "c")).text


@pytest.fixture
def workspace(folder):
    return Workspace(folder)


def test_lines_are_numbered_and_chosen(workspace):
    (workspace.root / "a").write_text("one\ntwo\nthree\n")
    assert use(ReadTool(workspace), path="a") == "1\tone\n2\ttwo\n3\tthree"
    assert use(ReadTool(workspace), path="a", offset=2, limit=1) == "2\ttwo\n[1 more lines]"


@pytest.mark.heavy
def test_lines_have_the_numbers_that_grep_gives_them(workspace):
    path = workspace.root / "a"
    path.write_bytes("1\f\v\x1c\x1d\x1e\x85\u2028\u2029\r1\r\n\r\nx\r\nx".encode())
    grep = subprocess.run(["grep", "-an", "x", str(path)], stdout=subprocess.PIPE, text=True)
    found = use(SearchTool(workspace), pattern="^x$")
    assert found.split("\n") == [f"a:{line}" for line in grep.stdout.splitlines()]
    assert found == "a:3:x\na:4:x"
    *_, empty, third, fourth = use(ReadTool(workspace), path="a").split("\n")
    assert (empty, third, fourth) == ("2\t", "3\tx", "4\tx")
    assert "line 3" in use(EditTool(workspace), path="a", old="x\r", new="y\r")


def test_an_edit_replaces_the_only_occurrence(workspace):
    path = workspace.root / "a.sh"
    path.write_text("x = 1\r\ny = 1\r\n", newline="")
    path.chmod(0o755)
    assert "line 2" in use(EditTool(workspace), path="a.sh", old="y = 1", new="y = 2")
    assert path.read_bytes() == b"x = 1\r\ny = 2\r\n" and path.stat().st_mode & 0o777 == 0o755
    for old, count in (("= ", 2), ("z", 0)):
        with pytest.raises(ToolError, match=f"occurs {count} times"):
            use(EditTool(workspace), path="a.sh", old=old, new="")
    assert path.read_bytes() == b"x = 1\r\ny = 2\r\n"


def test_a_file_is_written_with_its_folders(workspace):
    use(WriteTool(workspace), path="d/e/f", content="ä")
    assert (workspace.root / "d/e/f").read_text() == "ä"


@pytest.mark.parametrize("path", ["../secret", "/etc/hostname", "link/secret", "d/../../secret"])
def test_no_path_leads_out(workspace, path):
    outside = workspace.root.parent
    (outside / "secret").write_text("s")
    (workspace.root / "link").symlink_to(outside)
    for tool, arguments in CALLS:
        with pytest.raises(ToolError, match="not below the working directory"):
            use(tool(workspace), path=path, **arguments)
    assert (outside / "secret").read_text() == "s"


@pytest.mark.parametrize("path", ["\ud800", "a\0b"])
def test_what_no_file_can_be_called_is_refused(workspace, path):
    for tool, arguments in CALLS:
        with pytest.raises(ToolError):
            use(tool(workspace), path=path, **arguments)


def test_what_is_no_text_file_of_ordinary_size_is_refused(workspace):
    root = workspace.root
    (root / "binary").write_bytes(b"\xff\xfe")
    (root / "nul").write_bytes(b"a\0b")
    os.mkfifo(root / "pipe")
    with (root / "large").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    for name in ("binary", "nul", "large", ".", "absent"):
        with pytest.raises(ToolError):
            use(ReadTool(workspace), path=name)
    assert use(ReadTool(workspace), path="pipe") == "[the file is empty]", "nobody waits for it"
    for content in ("\ud800", "x" * (MAX_FILE_BYTES + 1)):
        with pytest.raises(ToolError):
            use(WriteTool(workspace), path="new", content=content)
    assert not (root / "new").exists()


@pytest.mark.heavy
def test_files_are_searched_by_content_and_by_name(workspace):
    root = workspace.root
    for path, text in (("a.py", "x\nneedle 1"), ("d/b.txt", "needle 2"), (".git/c.py", "needle")):
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text(text)
    (root / "binary").write_bytes(b"needle\0")
    (root / "away").symlink_to(root.parent)
    found = use(SearchTool(workspace), pattern=r"needle \d")
    assert found == "a.py:2:needle 1\nd/b.txt:1:needle 2"
    assert use(SearchTool(workspace), pattern="needle", name="*.txt") == "d/b.txt:1:needle 2"
    assert use(SearchTool(workspace), name="*.py") == "a.py"
    assert use(SearchTool(workspace), pattern="absent") == "[nothing found]"
    with pytest.raises(ToolError, match="not a regular expression"):
        use(SearchTool(workspace), pattern="(")


@pytest.mark.heavy
def test_a_search_without_an_end_is_stopped(workspace):
    (workspace.root / "a").write_text("a" * 60)
    with pytest.raises(ToolError, match="no end after"):
        use(SearchTool(workspace, seconds=0.5), pattern=r"(a|aa)+$b")


@pytest.mark.heavy
def test_a_module_in_the_working_directory_is_not_loaded_by_a_search(workspace, monkeypatch):
    monkeypatch.chdir(workspace.root)
    monkeypatch.setenv("PYTHONPATH", ".")
    (workspace.root / "json.py").write_text("open('stolen', 'w')")
    use(SearchTool(workspace), pattern="x")
    assert not (workspace.root / "stolen").exists()
