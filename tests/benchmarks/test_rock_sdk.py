"""The benchmark of ROCK's tests: how it ends."""

import contextlib
import signal

import pytest

from benchmarks import rock_sdk

pytestmark = pytest.mark.slow


def test_sigterm_ends_the_service(tmp_path, monkeypatch):
    ended = []

    @contextlib.contextmanager
    def served(runtime, python):
        try:
            yield "http://127.0.0.1:1"
        finally:
            ended.append(runtime)

    monkeypatch.setattr(rock_sdk, "served", served)
    monkeypatch.setattr(rock_sdk, "run_tests", lambda *_: signal.raise_signal(signal.SIGTERM))
    first = tmp_path / rock_sdk.TESTS / rock_sdk.RUN[0]
    first.parent.mkdir(parents=True)
    first.touch()
    # Without the benchmark's own handler the signal would end pytest.
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with pytest.raises(SystemExit) as end:
            rock_sdk.main([str(tmp_path), "--runtime=bubblewrap", "--python=python"])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (end.value.code, ended) == (130, ["bubblewrap"])
