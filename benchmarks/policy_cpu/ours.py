"""Our part of the comparison, in a separate process: the engine generates, and the learner trains.

    python -m benchmarks.policy_cpu.ours CHECKPOINT --iters N --out FILE

CHECKPOINT is a Hugging Face folder. Appends one line of JSON in the peers' format to FILE.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from ale_jax.algo.losses import count_loss_denominator
from ale_jax.config.architecture import PolicyShape
from ale_jax.config.engine import EngineShape, Sampling
from ale_jax.config.hardware import MeshShape
from ale_jax.config.optimizer import OptimizerHypers
from ale_jax.engine.engine import Engine
from ale_jax.learn.state import begin, make_optimizer
from ale_jax.learn.step import ModelSpec, make_loss, make_train_step
from ale_jax.model.params import Params
from ale_jax.model.sharding import make_mesh, param_shardings
from ale_jax.model.weights.load import load_params, open_checkpoint
from ale_jax.system.allocator import use_tcmalloc
from benchmarks.full_rows import GRPO, full_batch
from benchmarks.policy_cpu.work import FIRST_ID, PROMPT_TOKENS, ROW_TOKENS, ROWS, WRITTEN_TOKENS

VERSIONS = ("jax", "jaxlib", "flax", "optax", "numpy")
NO_STOP = (-1,)  # never sampled, as ids are not negative
PAGE_TOKENS = 16
SIZES = EngineShape(
    max_sequences=ROWS,
    max_sequence_length=ROW_TOKENS,
    decode_steps=WRITTEN_TOKENS,
    prefill_tokens=(PROMPT_TOKENS,),
    prefill_rows=ROWS,
    prefill_budget=ROWS * PROMPT_TOKENS,
    page_tokens=PAGE_TOKENS,
    pages=ROWS * ROW_TOKENS // PAGE_TOKENS,
    share_across_versions=False,
    int8_cache=False,
    weights="same",
)
# As in the peers' scripts.
ADAMW = OptimizerHypers("adamw", 1e-6, 1e-6, b1=0.9, b2=0.95, weight_decay=0.0, clip_norm=1.0)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--iters", type=int, required=True, help="calls after the first, each")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    checkpoint, mesh = open_checkpoint(options.checkpoint), make_mesh(MeshShape())
    shape = checkpoint.shape
    params = load_params(checkpoint, shardings=param_shardings(shape, mesh))
    row = {
        "gen": generation(shape, params, mesh, options.iters),
        "train": training(shape, params, mesh, options.iters),
        "versions": {name: version(name) for name in VERSIONS},
    }
    with options.out.open("a") as out:
        out.write(json.dumps(row) + "\n")
    return 0


def generation(shape: PolicyShape, params: Params, mesh: Mesh, calls: int) -> dict[str, float]:
    """Times the whole call, from the first request to the last reply."""
    engine = Engine(shape, SIZES, NO_STOP, params, mesh=mesh)
    draw = np.random.default_rng(0)

    def call() -> None:
        # New prompts in each call, so that no cached prefix can be reused.
        prompts = draw.integers(FIRST_ID, shape.vocab_size, (ROWS, PROMPT_TOKENS))
        conversations = [engine.open() for _ in prompts]
        replies = [
            engine.reply(conversation, ids, WRITTEN_TOKENS, Sampling(), _key(conversation))
            for conversation, ids in zip(conversations, prompts, strict=True)
        ]
        assert all(len(reply.result().ids) == WRITTEN_TOKENS for reply in replies)
        for conversation in conversations:
            engine.end(conversation)

    times = timed(call, calls)
    engine.close()
    return times | {"decode_tok_s": ROWS * WRITTEN_TOKENS / times["median_s"]}


def _key(conversation: int) -> np.ndarray:
    return np.array([0, conversation], np.uint32)


def training(shape: PolicyShape, params: Params, mesh: Mesh, calls: int) -> dict[str, float]:
    """Times one whole step: GRPO's clipped loss, its gradient, and an update of all weights."""
    optimizer = make_optimizer(ADAMW, shape)
    step = make_train_step(ModelSpec(shape, mesh), optimizer, make_loss(GRPO, chunks_per_pack=1))
    batches = [full_batch(shape.vocab_size, ROWS, ROW_TOKENS, PROMPT_TOKENS, FIRST_ID)]
    loss_denominator = count_loss_denominator(batches, GRPO.loss.aggregation)
    state = begin(params, optimizer, mesh)

    def call() -> None:
        nonlocal state
        state, sums, _ = step(state, batches, loss_denominator)
        jax.block_until_ready((state, sums))

    times = timed(call, calls)
    return times | {"tok_s": ROWS * ROW_TOKENS / times["median_s"]}


def timed(call: Callable[[], None], calls: int) -> dict[str, float]:
    """Seconds of the first call, which compiles, and of the `calls` after it: median and minimum of
    wall time, and median of all threads' CPU time."""
    first_s, _ = _seconds_of(call)
    wall_s, cpu_s = zip(*(_seconds_of(call) for _ in range(calls)), strict=True)
    return {
        "first_s": first_s,
        "median_s": statistics.median(wall_s),
        "min_s": min(wall_s),
        "cpu_s": statistics.median(cpu_s),
    }


def _seconds_of(call: Callable[[], None]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


if __name__ == "__main__":
    use_tcmalloc()  # as `ale-jax` does
    sys.exit(main(sys.argv[1:]))
