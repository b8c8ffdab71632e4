"""Plays many episodes of a fixed policy: engine, gateway, agent loop and sandboxes, in one
process."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from ale_jax.config.run import RunConfig
from ale_jax.data.packing import text_turn
from ale_jax.engine.engine import Engine
from ale_jax.gateway.app import make_app
from ale_jax.gateway.custody.ledger import Ledger
from ale_jax.gateway.server import served
from ale_jax.model.params import Params
from ale_jax.model.sharding import make_mesh
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.model.weights.shape import policy_shape
from ale_jax.records import EpisodeKey, Prefix, RolloutRequest, Trajectory
from ale_jax.rollout.play import EpisodeRunner
from ale_jax.rollout.policy_client import PolicyClient
from ale_jax.sandbox.datasets import Datasets
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.system.reply_limits import reply_limits
from ale_jax.worlds.families import PlayableFamilies
from ale_jax.worlds.schedule import Schedule


class Player:
    """The policy `params`, and as many sandboxes as its engine has places. It must be closed."""

    def __init__(self, config: RunConfig, tokenizer: ChatTokenizer, params: Params):
        self._sampling = config.train_sampling
        with contextlib.ExitStack() as stack:
            policy = policy_shape(config, tokenizer.vocab_size)
            mesh = make_mesh(config.mesh)
            self._engine = Engine(
                *(policy, config.engine, tokenizer.stop_ids, params, mesh),
                record_left=self._sampling.cuts,
            )
            stack.callback(self._engine.close)
            self._ledger = Ledger(self._engine, tokenizer, config.seed, reply_limits(config))
            self._url = stack.enter_context(served(make_app(self._ledger.episodes, config.name)))
            rollout = config.rollout
            datasets = Datasets.parse(rollout.datasets)
            runtime = pick_runtime(rollout.runtime, config.sandbox, rollout.uplink, datasets)
            worlds = PlayableFamilies(Schedule.of(config).families, config.sandbox)
            self._runner = EpisodeRunner(
                lambda spec: runtime.start(spec, {"role": "credit_truth"}), worlds, config.agent
            )
            stack.callback(self._runner.close)
            self._pool = stack.enter_context(ThreadPoolExecutor(config.engine.max_sequences))
            self._stack = stack.pop_all()
        self._names, self._lock = itertools.count(), threading.Lock()

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def play(self, requests: Iterable[RolloutRequest]) -> Iterator[Trajectory]:
        """The trajectories, in order. RuntimeError if the system loses one: nothing is left out."""
        for trajectory in self._pool.map(self._play, requests):
            self._engine.check()
            if trajectory.episode.reward is None:
                raise RuntimeError(f"an episode was lost: {trajectory.episode}")
            yield trajectory

    def _play(self, request: RolloutRequest) -> Trajectory:
        with self._lock:
            name = str(next(self._names))
        self._ledger.open(name, request.key, self._sampling, request.prefix_turns)
        with PolicyClient(self._url, name) as policy:
            played = self._runner.play(request.key, policy, request.prefix)
        return self._ledger.close(name, played.episode)


def continuation(key: EpisodeKey, trajectory: Trajectory) -> RolloutRequest:
    """An episode that starts after the first `key.num_prefix_turns` turns of the trajectory."""
    k, turns = key.num_prefix_turns, trajectory.turns
    if k == 0:
        return RolloutRequest(key)
    prefix_turns = tuple(
        text_turn(t.prompt_ids, t.action_ids, t.prompt_text, t.action_text) for t in turns[:k]
    )
    seen = tuple(turn.prompt_text for turn in turns[: k + 1])
    actions = tuple(turn.action_text for turn in prefix_turns)
    return RolloutRequest(key, prefix_turns, Prefix(seen, actions))
