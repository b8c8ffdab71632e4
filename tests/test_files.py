"""Logs survive a kill in the middle of a line, and name every other damage."""

import pytest

from ale_jax.files import (
    LineAppender,
    Lines,
    read_json,
    read_lines,
    write_atomically,
    write_json,
)


def read(path):
    return read_lines(path, lambda line: line["n"])


def test_lines_come_back_in_order(tmp_path):
    log = LineAppender(tmp_path / "log")
    for n in (3, 1, 2):
        log.append({"n": n})
    assert read(tmp_path / "log") == Lines((3, 1, 2), truncated_line=None)


def test_a_cut_last_line_is_left_out_and_named(tmp_path):
    (tmp_path / "log").write_bytes(b'{"n": 1}\n{"n": 2}\n{"n"')
    assert read(tmp_path / "log") == Lines((1, 2), truncated_line=3)


def test_appending_after_a_kill_cuts_the_incomplete_line_first(tmp_path):
    (tmp_path / "log").write_bytes(b'{"n": 1}\n{"n"')
    LineAppender(tmp_path / "log").append({"n": 5})
    assert (tmp_path / "log").read_bytes() == b'{"n": 1}\n{"n": 5}\n'


@pytest.mark.parametrize(
    "damaged",
    [
        b"{",
        b"[1]",
        b'{"m": 1}',
        b'{"n": NaN}',
        b'{"n": 1e999}',
        b'{"n": 9223372036854775808}',
        b"\x00\x00",
        b"\xff",
        b"[" * 100_000,
        b"",
    ],
    ids=lambda line: line[:12],
)
def test_damage_elsewhere_is_an_error_with_file_and_line(tmp_path, damaged):
    (tmp_path / "log").write_bytes(b'{"n": 1}\n' + damaged + b'\n{"n": 3}\n')
    with pytest.raises(ValueError, match=r"log, line 2: damaged"):
        read(tmp_path / "log")


def test_a_line_without_end_is_not_read_into_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("ale_jax.files.MAX_LINE_BYTES", 20)
    (tmp_path / "log").write_bytes(b'{"n": 1}\n{"n": "' + b"x" * 30 + b'"}\n')
    with pytest.raises(ValueError, match="line 2: longer than 20 bytes"):
        read(tmp_path / "log")


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    def parts():
        yield b"new"
        raise KeyboardInterrupt

    path = tmp_path / "file.json"
    write_json(path, {"old": 1})
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, parts())
    assert read_json(path) == {"old": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "file.json").write_text("{")
    with pytest.raises(ValueError, match=r"file\.json: damaged"):
        read_json(tmp_path / "file.json")
