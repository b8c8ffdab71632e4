"""Times a microbatch's forward and backward pass, relative to its arithmetic."""

from __future__ import annotations

import statistics
import time
from typing import Any

import jax
import numpy as np

from ale_jax.config.hardware import MeshShape
from ale_jax.config.model import Compute
from ale_jax.learn.step import ModelSpec, gradient_function, make_loss
from ale_jax.model.arithmetic import forward_flops, gradient_flops
from ale_jax.model.compute import EXACT
from ale_jax.model.params import Params
from ale_jax.model.sharding import make_mesh
from benchmarks.full_rows import GRPO, full_batch
from benchmarks.policy_gpu.plan import PEAK_FLOPS, TrainWork

COMPUTE = Compute("bfloat16", remat="layers")
BALANCE_WEIGHT = 1e-3
PROMPT_TOKENS = 64


def measure_train(params: Params, work: TrainWork, rows: int) -> dict[str, Any]:
    """mfu: model FLOPs (`gradient_flops`), divided by the median time and the device's peak."""
    shape, loss = work.shape, make_loss(GRPO, chunks_per_pack=1)
    model = ModelSpec(shape, make_mesh(MeshShape()), COMPUTE, balance_weight=BALANCE_WEIGHT)
    gradient = jax.jit(gradient_function(model, loss), compiler_options=EXACT)
    prompt_tokens = min(PROMPT_TOKENS, work.pack_length // 2)
    batch = full_batch(shape.vocab_size, rows, work.pack_length, prompt_tokens)
    arrays = jax.device_put(vars(batch))
    tokens = rows * work.pack_length

    def call() -> float:
        start = time.perf_counter()
        jax.block_until_ready(gradient(params, params, arrays, np.float32(tokens), 1.0))
        return time.perf_counter() - start

    compile_s = call()
    seconds = [call() for _ in range(work.repeats)]
    keys = (work.pack_length + 1) / 2  # a row is one causal segment
    flops = tokens * gradient_flops(shape, keys)
    median_s = statistics.median(seconds)
    return {
        "mfu": flops / median_s / PEAK_FLOPS,
        "tflops_per_second": flops / median_s / 1e12,
        "seconds": median_s,
        "seconds_by_repeat": seconds,
        "forward_flops_per_token": forward_flops(shape, keys),
        "tokens": tokens,
        "compile_s": compile_s,
        "layers": shape.num_layers,
        "vocab_size": shape.vocab_size,
    }
