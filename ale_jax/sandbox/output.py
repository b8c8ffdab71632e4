"""Output on its way from a runner to a result."""

from __future__ import annotations

from collections.abc import Callable

from ale_jax.sandbox.api import SandboxLost


class OutputSink:
    """Collects data up to a bound, which the runner, if it is what it should be, keeps to."""

    def __init__(self, max_bytes: int, on_data: Callable[[bytes], None] | None = None):
        self.data = bytearray()
        self._max_bytes, self._on_data = max_bytes, on_data

    def take(self, data: bytes) -> None:
        if len(self.data) + len(data) > self._max_bytes:
            raise SandboxLost(f"the runner sent more than the {self._max_bytes} bytes asked for")
        self.data += data
        if self._on_data:
            self._on_data(data)


def join(data: bytes, head: int, omitted: int) -> str:
    """Text of a command's output, with a note where its middle was left out."""
    if not omitted:
        return data.decode("utf-8", "replace")
    first, last = data[:head], data[head:]
    gap = f"\n[... {omitted} bytes omitted ...]\n"
    return first.decode("utf-8", "replace") + gap + last.decode("utf-8", "replace")
