"""A process of a run that is not the first: it executes the leader's log, in order."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import jax
import numpy as np

from ale_jax.errors import EXIT_FAILED
from ale_jax.learn.manifest import file_digests
from ale_jax.learn.rows import OwnRows
from ale_jax.system.hosts.commands import COMMANDS, perform
from ale_jax.system.hosts.connection import Connection, Frame, Gone
from ale_jax.system.lasting_output import write_last_words

LEAVE_S = 10.0  # for the main thread to end after the leader ends or is lost


class Part(Protocol):
    """What a follower has of the run."""

    trainer: Any

    def begin(self, tokenizer_size: int) -> None:
        """Makes the trainer."""

    def open_engine(self, tokenizer_files: dict[str, str], cluster_address: str) -> str:
        """Opens the engine and the server of its conversations. cluster_address: of the leader's
        machine, as rollout workers on other nodes reach it; empty if there are none."""


def follow(connection: Connection, part: Part) -> int:
    """Executes commands until the leader ends the log; returns the exit code that it names."""
    log = _Log(connection)
    try:
        return _follow(log, connection, part)
    finally:
        log.ended.set()


def _follow(log: _Log, connection: Connection, part: Part) -> int:
    kept: dict[int, np.ndarray] = {}
    commands = 0
    while True:
        header, arrays = log.next()
        if header["kind"] == "begin":
            part.begin(header["tokenizer_size"])
        elif header["kind"] == "open_engine":
            url = part.open_engine(header["files"], header["address"])
            connection.send({"kind": "answer", "url": url})
        elif header["kind"] == "digest":
            # Hundreds of gigabytes may take minutes, in which there are other commands.
            threading.Thread(target=_send_digests, args=(connection, header), daemon=True).start()
        elif header["kind"] == "command":
            commands += 1
            assert header["number"] == commands, (header["number"], commands)
            _execute(connection, part.trainer, header, arrays, kept)
        else:
            connection.send({"kind": "bye"})
            return header["code"]


def _execute(
    connection: Connection,
    trainer: Any,
    header: dict[str, Any],
    arrays: Sequence[np.ndarray],
    kept: dict[int, np.ndarray],
) -> None:
    """kept: arrays that later commands may name, by their number."""
    try:
        name, described = header["name"], header["batches"]
        if COMMANDS[name].forgets:
            kept.clear()
        fresh = iter(arrays)
        batches = [
            SimpleNamespace(
                **{
                    field: OwnRows(_kept(kept, number, fresh), tuple(shape))
                    for field, (number, shape) in batch.items()
                }
            )
            for batch in described
        ]
        result = perform(trainer, name, batches, header["scalars"])
        if COMMANDS[name].rows or COMMANDS[name].waits:
            connection.send({"kind": "answer"}, jax.tree.leaves(result))
    except Exception as error:
        connection.send({"kind": "failed", "error": f"{type(error).__name__}: {error}"[:1000]})
        raise


def _send_digests(connection: Connection, header: dict[str, Any]) -> None:
    files, error = {}, None
    try:
        files = file_digests(Path(header["folder"]), header["process"], header["processes"])
    except OSError as failed:
        error = [failed.errno, failed.strerror, str(failed.filename)]
    # If the leader is gone, the thread that receives ends this process.
    with contextlib.suppress(Gone):
        connection.send({"kind": "digests", "files": files, "error": error})


def _kept(kept: dict[int, np.ndarray], number: int, fresh: Any) -> np.ndarray:
    if number not in kept:
        kept[number] = next(fresh)
    return kept[number]


class _Log:
    """Receives frames in a thread of its own, which ends the process if the leader is lost while
    the main thread waits for devices that will not answer."""

    def __init__(self, connection: Connection):
        self._connection = connection
        self._frames: queue.Queue[Frame] = queue.Queue()
        self.ended = threading.Event()
        threading.Thread(target=self._receive, name="log", daemon=True).start()

    def next(self) -> Frame:
        return self._frames.get()

    def _receive(self) -> None:
        try:
            while True:
                frame = self._connection.receive()
                self._frames.put(frame)
                if frame[0]["kind"] == "end":
                    if not self.ended.wait(LEAVE_S):
                        os._exit(frame[0]["code"])
                    return
        except Gone as error:
            if self.ended.is_set():
                return
            write_last_words(f"error: the first process of this run is lost ({error})\n")
            os._exit(EXIT_FAILED)
