"""The newest policy of a run, or one that was trained elsewhere, behind the gateway."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np

from ale_jax.config.engine import PLAIN
from ale_jax.config.run import RunConfig
from ale_jax.engine.engine import Engine
from ale_jax.engine.engines import Engines
from ale_jax.gateway.app import make_app
from ale_jax.gateway.custody.engine_policy import ChatRender, EnginePolicy, language_of
from ale_jax.gateway.custody.token_tree import TokenTree
from ale_jax.gateway.episode import EpisodeOptions, GatewayEpisode
from ale_jax.gateway.episodes import Episodes
from ale_jax.gateway.server import served
from ale_jax.model.params import Params
from ale_jax.model.replicas import SamplingCopy, engine_meshes
from ale_jax.model.served_adapters import OF_COLUMN, of_column, placed
from ale_jax.model.sharding import num_data_shards
from ale_jax.model.sides import learner_mesh
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.model.weights.shape import policy_shape
from ale_jax.system.authors_sampling import Defaults, serving_defaults
from ale_jax.system.compilation import keep_compiled
from ale_jax.system.interpreter import made_for_serving
from ale_jax.system.served_adapters import check_served, read_served
from ale_jax.system.serving_plan import only_sampling, sized
from ale_jax.system.sources import check_weights, given_tokenizer
from ale_jax.system.states import first_weights, newest_state
from ale_jax.system.workdir import Workdir

CALLS_PER_PLACE = 16  # in progress or waiting, for each conversation that the engine has room for
REMEMBERED = 4096  # calls whose ids are kept for those that continue them
ANSWER_S = 5.0  # for the answers to calls that did not finish, when the server is closed
LOOK_S = 1.0  # between two looks at the engines


@dataclasses.dataclass(frozen=True)
class Serving:
    """A policy that is being served. url: of the API. key: that clients have to send. policy: which
    one answers. sampled: how its replies are sampled, unless a request says otherwise. check:
    raises RolloutsFailed if it will not answer any more. adapters: the names of those beside it."""

    url: str
    key: str
    policy: str
    sampled: Defaults
    check: Callable[[], None]
    adapters: tuple[str, ...] = ()

    def wait(self) -> NoReturn:
        """As long as clients are answered. RolloutsFailed once they will not be any more."""
        while True:
            self.check()
            time.sleep(LOOK_S)


class _Policy(NamedTuple):
    name: str
    params: Params
    tokenizer: ChatTokenizer


@contextlib.contextmanager
def serving(
    config: RunConfig,
    path: Path | None,
    host: str,
    port: int,
    as_in_run: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[Serving]:
    """Serves the newest policy of the run in `path`, or, if that is None, the weights that the
    config names, with the adapters of `lora.start` if it names some, within the block. Beside it,
    the adapters of `serve.adapters` are served by their names. port: 0 for a free one. At its end,
    calls in progress may finish for `serve.finish_seconds`; then they are answered with 503.

    as_in_run: with the sizes and the type of the run's engine, for as many episodes.
    say: is told what is compiled, before and after.

    ValueError if there is none, another process uses the folder, or adapters do not fit.
    """
    config = only_sampling(config)
    check_served(config)
    # Before the weights, which take long to read. The vocabulary does not matter here.
    adapters = read_served(config, policy_shape(config, config.tokenizer.vocab_size), say)
    keep_compiled(config.compilation_cache)
    found = _given(config) if path is None else _newest(config, path)
    told = Defaults(config.eval_sampling, "config.eval_sampling")
    sampled = serving_defaults(config) if path is None else told
    if not as_in_run:
        config = _sized(config)
    tokenizer, name = found.tokenizer, found.name
    each = _open_engines(config, found, list(adapters.values()))
    del found  # if the engines have copies, its weights take memory
    with contextlib.closing(Engines(each)) as engines:
        _compile(each, config, say)
        # Clients come and go, so that a conversation may never go on: half of the places are for
        # those that do.
        kept = max(config.engine.max_sequences // 2 // (1 + len(adapters)), 1)
        keys, language = partial(_key, config.seed), language_of(tokenizer)
        most, replies = engines.max_sequence_length, config.rollout.max_reply_tokens
        options = EpisodeOptions(kept, max_tokens=most, max_chars=most * tokenizer.longest_token)

        def episode(adapter: int) -> GatewayEpisode:
            tree = TokenTree(ChatRender(tokenizer), REMEMBERED)
            of_policy = tokenizer, sampled.sampling, replies
            policy = EnginePolicy(engines, *of_policy, adapter=adapter)
            return GatewayEpisode(tree, policy, language, keys, options)

        episodes = Episodes(CALLS_PER_PLACE * config.engine.max_sequences)
        key = episodes.open(episode(0))
        others = {name: episode(number) for number, name in enumerate(adapters, start=1)}
        app = make_app(episodes, config.name, engines.counts, engines.check, others)
        finish = config.serve.finish_seconds
        late = threading.Timer(finish, engines.close)
        try:
            with served(app, host, port, finish + ANSWER_S) as url, made_for_serving():
                try:
                    yield Serving(url, key, name, sampled, engines.check, tuple(adapters))
                finally:
                    late.start()
        finally:
            late.cancel()


def _sized(config: RunConfig) -> RunConfig:
    mesh = learner_mesh(config)
    meshes = engine_meshes(mesh, config.rollout.devices_per_engine)
    return sized(config, mesh.devices.flat[0].platform, num_data_shards(meshes[0]))


def _newest(config: RunConfig, path: Path) -> _Policy:
    with Workdir.open(path, config) as workdir:
        newest = newest_state(config, workdir.path)
    return _Policy(f"step {newest.step}", newest.state.params, newest.tokenizer)


def _given(config: RunConfig) -> _Policy:
    check_weights(config)
    tokenizer = given_tokenizer(config)
    assert tokenizer is not None, "weights have a tokenizer"
    policy = policy_shape(config, tokenizer.vocab_size)
    params = first_weights(config, policy, learner_mesh(config))
    start = config.lora.start
    return _Policy(f"{config.weights} with {start}" if start else config.weights, params, tokenizer)


def _open_engines(
    config: RunConfig, found: _Policy, adapters: Sequence[list[Params]]
) -> list[Engine]:
    policy, mesh = policy_shape(config, found.tokenizer.vocab_size), learner_mesh(config)
    meshes = engine_meshes(mesh, config.rollout.devices_per_engine)
    copy = SamplingCopy(policy, config.learn, mesh, config.engine.weights, meshes)
    stops, params = found.tokenizer.stop_ids, found.params
    if adapters:
        params = params | {"adapters": placed(adapters, policy, mesh)}
    weights = copy(params)
    if adapters:
        weights = [each | {OF_COLUMN: of_column(adapters)} for each in weights]
    # Clients send whole histories, which may have lost their place, and go on in several ways.
    shape = dataclasses.replace(config.engine, share_replies=True)
    return [
        Engine(policy, shape, stops, params, each)
        for params, each in zip(weights, meshes, strict=True)
    ]


def _compile(engines: Sequence[Engine], config: RunConfig, say: Callable[[str], None]) -> None:
    """Lets each engine write one token, so that no client has to wait for its program."""
    shape, dtype, start = config.engine, config.learn.compute_dtype, time.monotonic()
    say(
        f"compiling the engine for {shape.max_sequences} conversations of up to "
        f"{shape.max_sequence_length} tokens at once, in {dtype}"
    )
    for engine in engines:
        conversation = engine.open()
        engine.reply(conversation, np.zeros(1, np.int32), 1, PLAIN, _key(0, 0)).result()
        engine.end(conversation)
    say(f"compiled in {time.monotonic() - start:.0f} s")


def _key(seed: int, number: int) -> np.ndarray:
    return np.random.SeedSequence([seed, number]).generate_state(2, np.uint32)
