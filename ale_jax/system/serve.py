"""The newest policy of a run behind the gateway, for any client."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from ale_jax.gateway.app import make_app
from ale_jax.gateway.episode import EpisodeOptions, GatewayEpisode
from ale_jax.gateway.episodes import Episodes
from ale_jax.gateway.server import served
from ale_jax.gateway.token_tree import TokenTree
from ale_jax.model.replicas import engine_meshes, make_sampling_copy
from ale_jax.model.sharding import make_mesh
from ale_jax.rollout.engine import Engine
from ale_jax.rollout.engines import Engines
from ale_jax.rollout.policy_gateway import ChatRender, EnginePolicy, language_of
from ale_jax.system.compilation import keep_compiled
from ale_jax.system.config import RunConfig
from ale_jax.system.states import Newest, newest_state
from ale_jax.system.workdir import Workdir

REMEMBERED = 4096  # calls whose ids are kept for those that continue them


@dataclasses.dataclass(frozen=True)
class Serving:
    """url: of the API. key: that clients have to send. step: of the weights."""

    url: str
    key: str
    step: int


@contextlib.contextmanager
def serving(config: RunConfig, path: Path, host: str, port: int) -> Iterator[Serving]:
    """Serves the newest policy of the run in `path` within the block. port: 0 for a free one.

    ValueError if there is none, or another process uses the folder.
    """
    keep_compiled(config.compilation_cache)
    with Workdir.open(path, config) as workdir:
        newest = newest_state(config, workdir.path)
    engines, tokenizer, step = _open_engines(config, newest), newest.tokenizer, newest.step
    del newest  # its moments and, if the engines have copies, its weights take memory
    with contextlib.closing(engines):
        tree = TokenTree(ChatRender(tokenizer), REMEMBERED)
        policy = EnginePolicy(
            engines, tokenizer, config.eval_sampling, config.rollout.max_reply_tokens
        )
        # Clients come and go, so that a conversation may never go on: half of the places are for
        # those that do.
        kept = max(config.engine.max_sequences // 2, 1)
        keys, language = partial(_key, config.seed), language_of(tokenizer)
        longest = engines.max_sequence_length * tokenizer.longest_token
        episodes = Episodes()
        key = episodes.open(
            GatewayEpisode(tree, policy, language, keys, EpisodeOptions(kept, max_chars=longest))
        )
        with served(make_app(episodes, config.name), host, port) as url:
            yield Serving(url, key, step)


def _open_engines(config: RunConfig, newest: Newest) -> Engines:
    policy, mesh = config.policy_shape(newest.tokenizer.vocab_size), make_mesh(config.mesh)
    stored_as, devices = config.engine.weights, config.rollout.devices_per_engine
    copy = make_sampling_copy(policy, config.learn.compute, mesh, stored_as, devices)
    stops, weights = newest.tokenizer.stop_ids, copy(newest.state.params)
    meshes = engine_meshes(mesh, devices)
    return Engines(
        [
            Engine(policy, config.engine, stops, params, each)
            for params, each in zip(weights, meshes, strict=True)
        ]
    )


def _key(seed: int, number: int) -> np.ndarray:
    return np.random.SeedSequence([seed, number]).generate_state(2, np.uint32)
