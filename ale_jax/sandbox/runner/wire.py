"""The frames that host and runner exchange over one connection with many streams, and a buffer that
keeps head and tail of a command's output.

A frame: u32 length of the payload, u32 stream, u8 kind (big-endian), then the payload.

    OPEN    JSON: the request. With {"body": false}, no data follows from this side.
    DATA    at least one byte; at most WINDOW bytes of a stream may be sent before they are credited
    ERROR   as DATA, for standard error where it is separate
    CREDIT  u32: number of bytes of the stream that were consumed
    END     JSON: this side of the stream is over; from the runner, it carries the outcome
    PING    empty, of stream 0: the runner answers with another one
    CANCEL  empty, from the host: nobody waits for the outcome any more, so what runs for it ends

The host numbers its streams 1, 3, 5, ..., the runner 2, 4, 6, ...
"""

import json
import struct

PROTOCOL = 4
# The first byte over a direct socket, with descriptors: that of the runner's score for the OOM
# killer, and those that lead into the control group.
GATES = b"g"
MAX_GATES = 8
MAIN = "main"  # the session that is opened on demand
HEAD = struct.Struct(">IIB")
OPEN, DATA, ERROR, CREDIT, END, PING, CANCEL = range(7)
CHUNK = 1 << 16
WINDOW = 1 << 18
MAX_STREAMS = 256  # that the runner has open at a time; it accepts no more connections meanwhile
MAX_FRAME = 1 << 20  # of JSON; data is sent in pieces of at most CHUNK bytes


def frame(kind: int, stream: int, payload: bytes = b"") -> bytes:
    return HEAD.pack(len(payload), stream, kind) + payload


def json_frame(kind: int, stream: int, content: dict) -> bytes:
    return frame(kind, stream, json.dumps(content).encode())


def credit_frame(stream: int, count: int) -> bytes:
    return frame(CREDIT, stream, struct.pack(">I", count))


def credited(payload: bytes) -> int:
    return struct.unpack(">I", payload)[0]


class HeadAndTail:
    """Keeps the first and last bytes of a stream; those in between are only counted."""

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
        """Number of bytes left out between head and tail."""
        return max(0, self._total - len(self.head) - self._tail_limit)
