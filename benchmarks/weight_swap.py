"""How long does the engine take to sample with new weights, and does it lose a reply?"""

from __future__ import annotations

import statistics
import time
from concurrent.futures import Future
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.engine import EngineShape, Sampling
from ale_jax.config.model import ModelConfig
from ale_jax.engine.engine import Engine
from ale_jax.engine.request import Sampled
from ale_jax.model.params import count_params, init_params

NO_STOP = (-1,)  # never sampled, as ids are not negative
SWAPS = 7
TIMED = 2  # dispatches that are timed before a swap, and after it
PROMPT_TOKENS = 8
REPLIES = 2
WRITTEN_TOKENS = 2 * TIMED * SWAPS + 8  # a few more, for the start and as a reserve

HALF_BILLION = ModelConfig(  # the shape of Qwen2.5-0.5B
    width=896,
    num_layers=24,
    num_heads=14,
    num_kv_heads=2,
    head_width=64,
    mlp_width=4864,
    num_experts=0,
    experts_per_token=0,
    expert_width=0,
    qk_norm=False,
    qkv_bias=True,
    rope_theta=1e6,
    max_positions=32_768,
    tie_embeddings=True,
).policy_shape(151_936)


def measure_swap(shape: PolicyShape) -> dict[str, Any]:
    """Swaps bfloat16 weights SWAPS times while two replies are decoded, one step per dispatch.

    swap_ms: the median cost of a swap, which is the time of the call to `publish` plus the
    additional time of the TIMED dispatches after it, compared with those before it. replies_lost:
    replies that lack some of their tokens.
    """
    weights = [init_params(jax.random.key(n), shape, jnp.bfloat16) for n in (0, 1)]
    jax.block_until_ready(weights)
    engine = Engine(shape, _sizes(), NO_STOP, weights[0])
    replies = [_ask(engine, number) for number in range(REPLIES)]
    count = 3  # by then all replies are being decoded, and everything is compiled
    publish_ms, delay_ms = [], []
    for number in range(1, SWAPS + 1):
        begun = wait_for_decodes(engine, count)
        published = wait_for_decodes(engine, count + TIMED)
        engine.publish(weights[number % 2], number)
        publish_ms.append(1e3 * (time.perf_counter() - published))
        count += 2 * TIMED
        delay_s = wait_for_decodes(engine, count) - published - (published - begun)
        delay_ms.append(1e3 * max(0.0, delay_s))
    versions = [reply.result().version for reply in replies]
    engine.close()
    swaps_ms = [sum(each) for each in zip(publish_ms, delay_ms, strict=True)]
    return {
        "swap_ms": round(statistics.median(swaps_ms), 3),
        "swap_ms_by_swap": [round(each, 3) for each in swaps_ms],
        "publish_ms": round(statistics.median(publish_ms), 3),
        "weights": count_params(shape)[0],
        "replies_lost": sum(len(each) != WRITTEN_TOKENS for each in versions),
        "tokens_by_version": np.bincount(np.concatenate(versions)).tolist(),
    }


def _sizes() -> EngineShape:
    max_sequence_length = PROMPT_TOKENS + WRITTEN_TOKENS
    return EngineShape(
        max_sequences=REPLIES,
        max_sequence_length=max_sequence_length,
        decode_steps=1,
        prefill_tokens=(PROMPT_TOKENS,),
        prefill_rows=REPLIES,
        prefill_budget=REPLIES * PROMPT_TOKENS,
        page_tokens=16,
        pages=REPLIES * -(-max_sequence_length // 16),
        share_across_versions=False,
        int8_cache=False,
        weights="same",
    )


def _ask(engine: Engine, number: int) -> Future[Sampled]:
    ids, key = np.arange(PROMPT_TOKENS) + number, np.array([0, number], np.uint32)
    return engine.reply(engine.open(), ids, WRITTEN_TOKENS, Sampling(), key)


def wait_for_decodes(engine: Engine, count: int) -> float:
    """Waits until `count` dispatches that decode are done, and returns the time."""
    while engine.stats.decode_dispatches < count:
        engine.check()
        time.sleep(0.0002)
    return time.perf_counter()
