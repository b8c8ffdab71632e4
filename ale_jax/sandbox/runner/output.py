"""What is kept of a command's output."""

from .wire import CHUNK


class HeadAndTail:
    """The first and the last bytes of a stream; what lies between them is only counted."""

    def __init__(self, keep: int):
        self._head_limit = keep // 2
        self._tail_limit = keep - keep // 2
        self.head, self._tail, self._total = bytearray(), bytearray(), 0

    def add(self, chunk: bytes) -> None:
        room = self._head_limit - len(self.head)
        self.head += chunk[:room]
        self._tail += chunk[room:]
        self._total += len(chunk)
        if len(self._tail) > self._tail_limit + CHUNK:
            self._trim()

    def _trim(self) -> None:
        del self._tail[: max(0, len(self._tail) - self._tail_limit)]

    def tail(self) -> bytes:
        self._trim()
        return bytes(self._tail)

    @property
    def omitted(self) -> int:
        """Bytes left out between head and tail."""
        return max(0, self._total - len(self.head) - self._tail_limit)
