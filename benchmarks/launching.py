"""Runs that benchmarks make, which are ended with the benchmark and may save their state first."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from ale_jax.system.stopping import INTERRUPTED


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within the block, SIGTERM acts like Ctrl-C. Both end the program with exit code 130, after
    inner blocks have cleaned up. To be entered by the main thread."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        raise SystemExit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def launch(config: str, workdir: Path, changes: Mapping[str, object], *words: str) -> None:
    """Runs `ale_jax.launch` to its end. Interrupted, it waits until the run has saved its state.

    changes: by the dotted name of the config's field. words: a subcommand, and further flags.

    Raises:
      subprocess.CalledProcessError: the run did not finish.
    """
    line = [sys.executable, "-m", "ale_jax.launch", *words, f"--config={config}"]
    line += [
        f"--workdir={workdir}",
        *(f"--config.{name}={value}" for name, value in changes.items()),
    ]
    print(" ".join(line[1:]), flush=True)
    with interruptible():
        process = subprocess.Popen(line)
        try:
            code = process.wait()
        except KeyboardInterrupt:
            # Only a terminal sends Ctrl-C to the run, too, which takes both for one request.
            process.terminate()
            process.wait()
            raise
    if code:
        raise subprocess.CalledProcessError(code, line)
