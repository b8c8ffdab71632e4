"""The benchmark of families: its parts are named, and compiling is what a first call takes more."""

import jax
import pytest

from benchmarks.families import update_compile
from benchmarks.families.__main__ import main
from benchmarks.families.update_compile import compiling_seconds


def test_an_unknown_part_is_refused_by_name(capsys):
    with pytest.raises(SystemExit):
        main(["--only=compile,speed"])
    assert "there is no speed among parity, mutations, compile" in capsys.readouterr().err


def test_the_seconds_are_those_by_which_a_first_call_is_longer(monkeypatch):
    times = iter([10.0, 14.0, 20.0, 21.0])  # around calls of 4 and of 1 seconds
    monkeypatch.setattr(update_compile.time, "process_time", lambda: next(times))
    monkeypatch.setattr(jax, "clear_caches", lambda: None)  # others' programs stay compiled
    assert compiling_seconds(lambda mesh: lambda: None, None) == 3.0
