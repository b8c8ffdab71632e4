"""Times a decode step of the engine's program, relative to reading the bytes that it needs."""

from __future__ import annotations

import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.model import Compute
from ale_jax.model.generate import PrefillBatches, prefill_and_decode
from ale_jax.model.memory import empty_cache
from ale_jax.model.params import Params, init_params
from ale_jax.model.sampler import SlotState
from ale_jax.model.sampling_weights import sampling_weights
from benchmarks.policy_gpu.plan import DecodeWork

NO_STOP = (-1,)  # never sampled, as ids are not negative
CHUNK_TOKENS = 16  # the program includes prefill, as in the engine, but there is nothing to prefill
COPIED_BYTES = 4 * 2**30  # many times the cache of any GPU
COPIES = 10


def measure_bandwidth() -> float:
    """Bytes per second, read and written, while this device copies its memory: the fastest of some
    copies."""
    copy = jax.jit(lambda x_n: x_n + 1)
    x_n = jax.block_until_ready(jnp.zeros(COPIED_BYTES // 4, jnp.float32))
    jax.block_until_ready(copy(x_n))
    seconds = []
    for _ in range(COPIES):
        start = time.perf_counter()
        jax.block_until_ready(copy(x_n))
        seconds.append(time.perf_counter() - start)
    return 2 * COPIED_BYTES / min(seconds)


def sampler_weights(shape: PolicyShape) -> Params:
    """Random weights, with the types of `compute.sampling_weights` for bfloat16."""
    params = init_params(jax.random.key(0), shape, jnp.bfloat16)
    return sampling_weights(params, shape, Compute("bfloat16"))


def expected_experts(shape: PolicyShape, batch: int) -> float:
    """Expected number of a layer's experts that any token of the batch chooses, for uniform
    choices."""
    missed_by_all = (1 - shape.experts_per_token / shape.num_experts) ** batch
    return shape.num_experts * (1 - missed_by_all)


def floor_bytes(params: Params, shape: PolicyShape, batch: int, context: float) -> dict[str, float]:
    """The bytes that a step must read: the weights, where only the expected number of chosen
    experts counts, and the keys and values of `context` tokens of each conversation.

    params: arrays or their shapes. One row of the embedding is read per conversation.
    """
    chosen = expected_experts(shape, batch) / shape.num_experts if shape.is_moe else 1.0
    bytes_of = {"experts": 0.0, "other_weights": 0.0}
    for path, weight in jax.tree_util.tree_leaves_with_path(params):
        size, name = weight.size * weight.dtype.itemsize, path[-1].key
        if name.endswith(("_EDF", "_EFD")):
            bytes_of["experts"] += chosen * size
        elif name == "embed_VD" and not shape.tie_embeddings:
            bytes_of["other_weights"] += batch * size / shape.vocab_size
        else:
            bytes_of["other_weights"] += size
    mixer = shape.layers[0].mixer
    of_token = 2 * mixer.num_kv_heads * mixer.head_width * params["embed_VD"].dtype.itemsize
    return bytes_of | {"cache": shape.num_layers * batch * context * of_token}


def measure_decode(
    params: Params, work: DecodeWork, batch: int, platform: str, bandwidth: float
) -> dict[str, Any]:
    """ratio: of the median step's time to the floor. platform: whose kernels the program uses.
    bandwidth: of the device's memory, in bytes per second.

    Each dispatch writes the same positions again, and dispatches follow each other without
    synchronization with the host.
    """
    shape, pages_per_sequence = work.shape, work.max_sequence_length // work.page_tokens
    dtype = params["embed_VD"].dtype
    cache = empty_cache(shape, batch * pages_per_sequence, work.page_tokens, dtype)
    page_SW = np.arange(batch * pages_per_sequence, dtype=np.int32).reshape(
        batch, pages_per_sequence
    )
    page_SW, state = jax.device_put((page_SW, _decoding(work, batch)))

    def dispatch(cache):
        cache, _, output = prefill_and_decode(
            params,
            cache,
            state,
            page_SW,
            _nothing_to_prefill(),
            state,
            shape=shape,
            sizes=(CHUNK_TOKENS,),
            steps=work.steps,
            stop_ids=NO_STOP,
            platform=platform,
        )
        return cache, output

    start = time.perf_counter()
    cache, output = jax.block_until_ready(dispatch(cache))
    compile_s = time.perf_counter() - start
    assert (np.asarray(output.token_nS) >= 0).all(), "some conversations rested"
    step_s = []
    for _ in range(work.repeats):
        start = time.perf_counter()
        for _ in range(work.dispatches):
            cache, output = dispatch(cache)
        jax.block_until_ready(output)
        step_s.append((time.perf_counter() - start) / (work.dispatches * work.steps))
    # A token attends to those before it and to itself.
    context = work.context + (work.steps + 1) / 2
    parts = floor_bytes(params, shape, batch, context)
    floor_s = sum(parts.values()) / bandwidth
    return {
        "ratio": statistics.median(step_s) / floor_s,
        "step_ms": 1e3 * statistics.median(step_s),
        "step_ms_by_repeat": [1e3 * each for each in step_s],
        "floor_ms": 1e3 * floor_s,
        "floor_bytes": parts,
        "bandwidth": bandwidth,
        "compile_s": compile_s,
        "layers": shape.num_layers,
    }


def _decoding(work: DecodeWork, batch: int) -> SlotState:
    """All conversations write a whole dispatch's tokens."""
    draw = np.random.default_rng(0)

    def every(value: float, dtype: type) -> np.ndarray:
        return np.full((batch,), value, dtype)

    return SlotState(
        token_S=draw.integers(0, work.shape.vocab_size, (batch,), dtype=np.int32),
        position_S=every(work.context, np.int32),
        budget_S=every(work.steps, np.int32),
        key_S2=draw.integers(0, 2**31, (batch, 2), dtype=np.uint32),
        temperature_S=every(1.0, np.float32),
        top_k_S=every(0, np.int32),
        top_p_S=every(1.0, np.float32),
        min_p_S=every(0.0, np.float32),
        continues_S=every(False, np.bool_),
    )


def _nothing_to_prefill() -> PrefillBatches:
    one = np.zeros((1, 1), np.int32)
    return PrefillBatches(
        num_batches=np.int32(0),
        size_Q=np.zeros((1,), np.int32),
        slot_QR=one,
        tokens_QRT=np.zeros((1, 1, CHUNK_TOKENS), np.int32),
        start_QR=one,
        count_QR=one,
    )
