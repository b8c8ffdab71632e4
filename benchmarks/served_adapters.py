"""What do adapters that are served side by side cost in a decode step?

    python -m benchmarks.served_adapters

SmolLM2-135M's layers, with adapters of all maps, and as many conversations at once as there are
adapters at most. Engines take turns, round by round.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.engine import EngineShape, Sampling
from ale_jax.config.model import ALL_LINEAR, ModelConfig
from ale_jax.engine.engine import Engine
from ale_jax.model.lora import adapter_table, chosen_maps
from ale_jax.model.params import Params, init_params, init_table
from ale_jax.model.served_adapters import OF_COLUMN, of_column, side_by_side

NO_STOP = (-1,)  # never sampled, as ids are not negative
COUNTS = (0, 1, 8)
RANK, ROUNDS, WRITTEN_TOKENS, PROMPT_TOKENS = 16, 9, 32, 8

SMOL = ModelConfig(
    width=576,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_width=64,
    mlp_width=1536,
    qk_norm=False,
    max_positions=8192,
    tie_embeddings=True,
).policy_shape(49_152)


def measure(shape: PolicyShape, counts: Sequence[int] = COUNTS) -> dict[str, Any]:
    """Returns, by the number of adapters, the median milliseconds of a decode step, and the median
    over the rounds of its time over that of no adapters."""
    conversations = max(counts)
    params = init_params(jax.random.key(0), shape)
    with contextlib.ExitStack() as stack:
        engines = {}
        for count in counts:
            engine = Engine(shape, _sizes(conversations), NO_STOP, _with(params, shape, count))
            engines[count] = stack.enter_context(contextlib.closing(engine))
            _round(engine, count, conversations)  # compiles
        rounds = [
            {count: _round(engine, count, conversations) for count, engine in engines.items()}
            for _ in range(ROUNDS)
        ]
    median = statistics.median
    return {
        "conversations": conversations,
        "rank": RANK,
        "step_ms": {n: round(1e3 * median(each[n] for each in rounds), 2) for n in counts},
        "over_none": {n: round(median(each[n] / each[0] for each in rounds), 3) for n in counts},
    }


def _with(params: Params, shape: PolicyShape, count: int) -> Params:
    """The weights with so many adapters of all maps."""
    table: Any = adapter_table(shape, chosen_maps(shape, (ALL_LINEAR,)), RANK)
    adapters: list[Any] = [init_table(jax.random.key(n), table) for n in range(count)]
    if not count:
        return params
    joined = jax.device_put(side_by_side(jax.device_get(adapters), shape))
    return params | {"adapters": joined, OF_COLUMN: of_column(adapters)}


def _round(engine: Engine, adapters: int, conversations: int) -> float:
    """Seconds of a decode step."""
    opened = [engine.open(n % adapters + 1 if adapters else 0) for n in range(conversations)]
    ids, start = np.arange(PROMPT_TOKENS), time.perf_counter()
    replies = [
        engine.reply(each, ids + n, WRITTEN_TOKENS, Sampling(), np.array([0, n], np.uint32))
        for n, each in enumerate(opened)
    ]
    for reply in replies:
        assert len(reply.result().ids) == WRITTEN_TOKENS
    seconds = time.perf_counter() - start
    for each in opened:
        engine.end(each)
    return seconds / WRITTEN_TOKENS


def _sizes(conversations: int) -> EngineShape:
    pages = -(-(PROMPT_TOKENS + WRITTEN_TOKENS) // 16)
    return EngineShape(
        max_sequences=conversations,
        max_sequence_length=PROMPT_TOKENS + WRITTEN_TOKENS,
        decode_steps=8,
        prefill_tokens=(PROMPT_TOKENS,),
        prefill_rows=conversations,
        prefill_budget=conversations * PROMPT_TOKENS,
        page_tokens=16,
        pages=conversations * pages,
        share_across_versions=False,
        int8_cache=False,
        weights="same",
    )


if __name__ == "__main__":
    print(json.dumps(measure(SMOL)))
