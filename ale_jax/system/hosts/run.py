"""A run on all its processes: the first one controls it, and the others follow."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import jax

from ale_jax.config.run import RunConfig
from ale_jax.engine.engines import Engines
from ale_jax.errors import EXIT_FAILED, RolloutsFailed
from ale_jax.gateway.app import make_app
from ale_jax.gateway.custody.ledger import Ledger
from ale_jax.gateway.server import served
from ale_jax.model.sides import learner_mesh
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.model.weights.shape import policy_shape
from ale_jax.system.compilation import keep_compiled
from ale_jax.system.hosts.commands import Alone, Processes
from ale_jax.system.hosts.connection import Connection, Gone
from ale_jax.system.hosts.conversations import ConversationService
from ale_jax.system.hosts.engine_times import EngineTimes
from ale_jax.system.hosts.follower import follow
from ale_jax.system.hosts.leader import Leader
from ale_jax.system.hosts.start import (
    accept_followers,
    connect_to_leader,
    digest,
    own_address,
    served_at,
)
from ale_jax.system.interpreter import made_for_serving
from ale_jax.system.library_log import LibraryLog
from ale_jax.system.reply_limits import reply_limits
from ale_jax.system.stopping import INTERRUPTED, StopSignals
from ale_jax.system.trainer import Trainer

GRACE_MORE_S = 10.0  # for a follower, to whom nothing is left to save
LOOK_S = 1.0  # between two looks at the engine


@contextlib.contextmanager
def led(config: RunConfig, coordinator: str) -> Iterator[Processes]:
    """Yields the processes of a run, for the first of them; the others exit when the block ends."""
    if jax.process_count() == 1:
        yield Alone()
        return
    address = own_address(coordinator)
    leader = Leader(accept_followers(address, digest(config.to_json())), address)
    code = EXIT_FAILED
    try:
        yield leader
        code = 0
    except KeyboardInterrupt:
        code = INTERRUPTED
        raise
    except Exception as error:
        leader.blame_loss(error)
        raise
    finally:
        leader.end(code)


def follow_run(config: RunConfig, path: Path) -> int:
    """Takes part in the run in `path` until its first process ends it; returns the exit code."""
    log, conversations, address = connect_to_leader(digest(config.to_json()))
    keep_compiled(config.compilation_cache)
    # The first process takes up to the grace to save, and this one ends after it.
    grace = config.checkpoint.grace_seconds + GRACE_MORE_S
    with (
        LibraryLog(path, f"library.{jax.process_index()}.log"),
        StopSignals(grace, lambda: _tell(log)),
        _Part(config, log, conversations, address) as part,
    ):
        return follow(log, part)


def _tell(log: Connection) -> None:
    """Tells the first process that this one is to stop."""
    with contextlib.suppress(Gone):  # it has ended already
        log.send({"kind": "stop"})


class _Part:
    """A follower's trainer and engine, and the gateway to the engine's conversations.

    address: of this machine, as rollout workers reach it.
    """

    def __init__(self, config: RunConfig, log: Connection, conversations: Connection, address: str):
        self._config, self._log, self._conversations = config, log, conversations
        self._address = address
        self._stack = contextlib.ExitStack()
        self._ended = threading.Event()
        self.trainer: Trainer | None = None

    def begin(self, tokenizer_size: int) -> None:
        config = self._config
        policy = policy_shape(config, tokenizer_size)
        self.trainer = Trainer(config, policy, learner_mesh(config))

    def open_engine(self, tokenizer_files: dict[str, str], cluster_address: str) -> str:
        with tempfile.TemporaryDirectory(prefix="ale-tokenizer-") as folder:
            for name, text in tokenizer_files.items():
                Path(folder, Path(name).name).write_text(text)
            tokenizer = ChatTokenizer.load(folder)
        config = self._config
        assert self.trainer is not None, "the first process sends begin first"
        engines = self.trainer.open_engines(tokenizer.stop_ids)
        branches = config.external_agent.branches
        ledger = Ledger(engines, tokenizer, config.seed, reply_limits(config), branches)
        times = EngineTimes() if config.timeline else None
        if times:
            engines.observe(times.sampled, times.sampled)  # none is lent with several processes
        ConversationService(self._conversations, ledger, times)
        threading.Thread(target=self._watch, args=(engines,), daemon=True).start()
        gateway = make_app(ledger.episodes, config.name, engines.counts, engines.check)
        host = served_at(self._address, cluster_address)
        url = self._stack.enter_context(served(gateway, host))
        self._stack.enter_context(made_for_serving())
        return url

    def _watch(self, engines: Engines) -> None:
        while not self._ended.wait(LOOK_S):
            try:
                engines.check()
            except RolloutsFailed as error:
                self._log.send({"kind": "failed", "error": str(error)})
                return

    def __enter__(self) -> _Part:
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._stack.close()
        if self.trainer is not None:
            self.trainer.close()
