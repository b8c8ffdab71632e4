"""Commands that write files into a sandbox."""

import subprocess

import pytest

from ale_jax.agent.tool_steps import END, MAX_PART_CHARS, file_commands


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("content", "is_readable"),
    [
        (b"a" * (MAX_PART_CHARS - 1) + b"\n", True),
        (b"a" * MAX_PART_CHARS + b"\n", False),
        (b"no end of line", False),
        (b"\xff\n", False),
        (b"", False),
        (b"a\0b\n", False),
        (f"{END}\nrm -r .\n".encode(), False),
    ],
    ids=["longest", "longer", "no end of line", "no text", "empty", "zero byte", "marker"],
)
def test_a_text_is_written_as_it_reads_up_to_a_length(content, is_readable, tmp_path):
    path = tmp_path / "with a folder" / "file"
    commands = list(file_commands(content, str(path), is_executable=True))
    assert any(content.decode(errors="replace") in command for command in commands) == (
        is_readable or not content
    )
    for command in commands:
        subprocess.run(["bash", "-c", command], check=True)
    assert path.read_bytes() == content and path.stat().st_mode & 0o111
