"""The first process of a run that has several: it decides, and logs each command to the followers.

Each follower executes the log in order, as this process does. The end of a log's connection is the
sign that a process has died. The others then end, because programs on shared devices would wait for
it forever.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from ale_jax.errors import EXIT_FAILED, RunFailed
from ale_jax.learn.manifest import Digests, file_digests
from ale_jax.learn.rows import join_rows, process_rows
from ale_jax.system.hosts.commands import COMMANDS, EnginesObserver, Traffic, perform
from ale_jax.system.hosts.connection import Connection, Frame, Gone
from ale_jax.system.hosts.conversations import RemoteLedger
from ale_jax.system.lasting_output import write_last_words
from ale_jax.system.rollouts.policy_replicas import PolicyReplica
from ale_jax.system.stopping import ANOTHER_WAS_TOLD

NOTICE_S = 2.0  # for a dead process's connections to end, all of them
LEAVE_S = 10.0  # for the main thread, which may be stuck in a program, to end after a loss


class Leader:
    """The `Processes` of a run, as the first of them sees them. All methods but `digests` are
    called by the main thread."""

    def __init__(self, connections: Mapping[int, tuple[Connection, Connection]], address: str):
        """connections: to each follower, by its number: of its log, and of its conversations.
        address: of this machine, as rollout workers reach it."""
        self.address = address
        self._number = 0
        self._lost: str | None = None
        self._is_lost = threading.Event()
        self._ending = False
        self._rows: dict[int, np.ndarray] = {}  # of a batch, on each process
        self._followers = [_Follower(n, *both, self._lose) for n, both in connections.items()]

    def begin(self, tokenizer_size: int, mesh: Mesh, num_rows: int) -> None:
        self._rows = {0: process_rows(mesh, num_rows, 0)}
        for follower in self._followers:
            self._rows[follower.number] = process_rows(mesh, num_rows, follower.number)
            follower.send({"kind": "begin", "tokenizer_size": tokenizer_size})

    def run(self, target: Any, name: str, batches: Sequence[Any], scalars: dict[str, Any]) -> Any:
        self.check()
        self._number += 1
        header = {"kind": "command", "number": self._number, "name": name, "scalars": scalars}
        for follower in self._followers:
            follower.send_command(header, batches, self._rows.get(follower.number))
        result = perform(target, name, batches, scalars)
        if COMMANDS[name].waits:
            for follower in self._followers:
                self._reply(follower)
        return self._whole(result) if COMMANDS[name].rows else result

    def open_replicas(
        self,
        tokenizer_files: Mapping[str, str],
        cluster_address: str,
        observer: EnginesObserver | None = None,
    ) -> list[PolicyReplica]:
        files = dict(tokenizer_files)
        for follower in self._followers:
            follower.send({"kind": "open_engine", "files": files, "address": cluster_address})
        return [self._opened(follower, observer) for follower in self._followers]

    def _opened(self, follower: _Follower, observer: EnginesObserver | None) -> PolicyReplica:
        header, _ = self._reply(follower)
        own = functools.partial(observer, follower.number) if observer else None
        ledger = RemoteLedger(follower.conversations, own)
        return PolicyReplica(ledger, header["url"], ledger.sampled_tokens)

    def digests(self, folder: Path) -> Digests:
        count = 1 + len(self._followers)
        for follower in self._followers:
            share = {"process": follower.number, "processes": count}
            follower.send({"kind": "digest", "folder": str(folder)} | share)
        found = file_digests(folder, 0, count)
        # All of them, also after an error, or the next call would take an answer of this one.
        answers = [self._wait(follower.digests)[0] for follower in self._followers]
        for answer in answers:
            if answer["error"]:
                raise OSError(*answer["error"])
            found |= answer["files"]
        return found

    def traffic(self) -> list[Traffic]:
        return [Traffic(each.connection.sent_bytes, each.row_bytes) for each in self._followers]

    def check(self) -> None:
        """Raises RunFailed if a follower is lost, or could not execute a command."""
        if self._lost:
            raise RunFailed(self._lost)

    def blame_loss(self, error: Exception) -> None:
        """Raises RunFailed if a follower is lost, since any `error` may come of that: programs on
        shared devices fail when one of them dies, perhaps before the end of its log is noticed."""
        if self._is_lost.wait(NOTICE_S):
            raise RunFailed(self._lost) from error

    def end(self, code: int) -> None:
        """Lets the followers exit with `code`, and waits until they are about to, unless one of
        them is lost, since the others may wait for it."""
        self._ending = True
        for follower in self._followers:
            follower.send({"kind": "end", "code": code})
        for follower in self._followers:
            if not self._lost:
                with contextlib.suppress(queue.Empty):
                    follower.replies.get(timeout=LEAVE_S)
            follower.connection.close()
            follower.conversations.close()

    def _whole(self, own: Any) -> Any:
        """A tree of whole arrays, from the rows of this process and those of the followers."""
        leaves, tree = jax.tree.flatten(own)
        parts = {0: leaves} | {each.number: self._reply(each)[1] for each in self._followers}
        joined = [
            join_rows([(self._rows[n], arrays[i]) for n, arrays in parts.items()])
            for i in range(len(leaves))
        ]
        return jax.tree.unflatten(tree, joined)

    def _reply(self, follower: _Follower) -> Frame:
        return self._wait(follower.replies)

    def _wait(self, answers: queue.Queue[Frame]) -> Frame:
        while True:
            self.check()
            with contextlib.suppress(queue.Empty):
                return answers.get(timeout=0.5)

    def _lose(self, process: int, why: str) -> None:
        """Ends this process, since a follower is lost. Called by the thread that listens to it."""
        if self._ending or self._lost:
            return
        self._lost = (
            f"process {process} of this run {why}, and the others end: the same command continues "
            "from the last checkpoint"
        )
        self._is_lost.set()
        for follower in self._followers:
            follower.send({"kind": "end", "code": EXIT_FAILED})
        timer = threading.Timer(LEAVE_S, self._leave)
        timer.daemon = True
        timer.start()

    def _leave(self) -> None:
        if self._ending:
            return  # the main thread ends this process
        # The main thread waits for devices that will not answer. Sandboxes and Ray's processes end
        # with this process.
        write_last_words(f"error: {self._lost}\n")
        os._exit(EXIT_FAILED)


class _Follower:
    """A follower, as the leader sees it.

    replies: its answers to commands, in order. digests: its answers about files. row_bytes: that
    it was sent.
    """

    def __init__(
        self,
        number: int,
        connection: Connection,
        conversations: Connection,
        lose: Callable[[int, str], None],
    ):
        self.number, self.connection, self.conversations = number, connection, conversations
        self.replies: queue.Queue[Frame] = queue.Queue()
        self.digests: queue.Queue[Frame] = queue.Queue()
        self._lose = lose
        self._kept: dict[int, tuple[np.ndarray, int]] = {}  # id of an array -> it, its number
        self._arrays_sent = self.row_bytes = 0
        threading.Thread(target=self._listen, name=f"follower-{number}", daemon=True).start()

    def send(self, header: dict[str, Any], arrays: Sequence[np.ndarray] = ()) -> None:
        # If it is gone, the thread that listens notices it, too, and says so.
        with contextlib.suppress(Gone):
            self.connection.send(header, arrays)

    def send_command(
        self, header: dict[str, Any], batches: Sequence[Any], rows: np.ndarray
    ) -> None:
        """Sends the command with this follower's rows of the batches. It still has what it was sent
        since the last command that forgets, and is only told its number."""
        if COMMANDS[header["name"]].forgets:
            self._kept.clear()
        arrays: list[np.ndarray] = []
        described = [dict(self._describe(batch, arrays, rows)) for batch in batches]
        self.row_bytes += sum(array.nbytes for array in arrays)
        self.send(header | {"batches": described}, arrays)

    def _describe(
        self, batch: Any, arrays: list[np.ndarray], rows: np.ndarray
    ) -> Iterator[tuple[str, Any]]:
        """(name, [number, shape]) of each array; adds those that are new to `arrays`."""
        for name, array in vars(batch).items():
            if array is None:
                continue
            if id(array) not in self._kept:
                whole = np.asarray(array)
                self._kept[id(array)] = array, self._arrays_sent
                self._arrays_sent += 1
                arrays.append(whole[rows])
            yield name, [self._kept[id(array)][1], np.shape(array)]

    def _listen(self) -> None:
        try:
            while True:
                header, arrays = self.connection.receive()
                if header["kind"] in ("answer", "bye"):
                    self.replies.put((header, arrays))
                    if header["kind"] == "bye":
                        return
                elif header["kind"] == "digests":
                    self.digests.put((header, arrays))
                elif header["kind"] == "stop":
                    os.kill(os.getpid(), ANOTHER_WAS_TOLD)
                else:
                    return self._lose(self.number, f"failed ({header['error']})")
        except (Gone, KeyError) as error:
            self._lose(self.number, f"is lost ({error})")
