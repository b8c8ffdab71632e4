"""The files from which TensorBoard draws curves."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import masked_crc32c
from tensorboardX.summary import scalar

VERSION = "brain.Event:2"


class EventFile:
    """A new file of scalars in `folder`, written by the thread that calls, and flushed each time.

    tensorboardX's own writer has a thread and a short queue: an OSError ends that thread, and after
    that whoever adds a scalar waits for ever.
    """

    def __init__(self, folder: Path, purge_step: int | None):
        """purge_step: from this step on, TensorBoard drops what earlier files of the folder say;
        None if there are none. OSError if the file cannot be written."""
        folder.mkdir(parents=True, exist_ok=True)
        # Files are named by the second, so a quick resume would overwrite the previous one.
        suffix = f"{int(time.time())}.{socket.gethostname()}.from-{purge_step or 0}"
        self._file = (folder / f"events.out.tfevents.{suffix}").open("wb")
        self._write(Event(file_version=VERSION))
        if purge_step is not None:
            restart = SessionLog(status=SessionLog.START)
            self._write(Event(step=purge_step, file_version=VERSION))
            self._write(Event(step=purge_step, session_log=restart))

    def write(self, step: int, values: Mapping[str, int | float]) -> None:
        """Raises OSError if it cannot be written."""
        summary = Summary(value=[scalar(*each).value[0] for each in values.items()])
        self._write(Event(step=step, summary=summary))

    def close(self) -> None:
        self._file.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))  # each record is framed as TensorFlow does it
        self._file.write(b"".join((length, _checksum(length), data, _checksum(data))))
        self._file.flush()


def _checksum(data: bytes) -> bytes:
    return struct.pack("<I", masked_crc32c(data))
