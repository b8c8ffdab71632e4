"""What do other threads cost the engine, with Python's switch interval and with that of a run?

    python -m benchmarks.engine_threads

An engine of SmolLM2-135M's shape, with random weights, writes for 96 conversations. Meanwhile a
thread runs Python code for none, half and all of the time. Prints a line for each measurement, and
JSON at the end. It is made for a GPU, and takes two minutes there; CPUs take much longer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ale_jax.launch import THREAD_SWITCH_SECONDS
from ale_jax.model.params import init_params
from ale_jax.model.sampler import Sampling
from ale_jax.model.shape import PolicyShape
from ale_jax.rollout.engine import Engine
from ale_jax.rollout.engine_shape import EngineShape
from benchmarks.weight_swap import HALF_BILLION, NO_STOP

SMOLLM2_135M = dataclasses.replace(
    HALF_BILLION,
    vocab_size=49_152,
    width=576,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    mlp_width=1536,
    qkv_bias=False,
    rope_theta=1e5,
    max_positions=8192,
    norm_eps=1e-5,
)
CONVERSATIONS = 96
TURNS = 8  # of a conversation, which then makes room for another one
PROMPT_TOKENS, RESULT_TOKENS, REPLY_TOKENS = 300, (40, 110), (16, 64)
SHARES = (0.0, 0.5, 1.0)  # of the time in which another thread runs Python code
SLICE_SECONDS = 0.004  # for which it does without a pause
SECONDS = 4.0  # of one measurement
FIRST_BURSTS = 5  # are not timed, as the program may have to be compiled


def main() -> None:
    found = []
    python_seconds = sys.getswitchinterval()
    for share in SHARES:
        for interval in (python_seconds, THREAD_SWITCH_SECONDS):
            with _switching(interval), _python_code(share):
                each = measure(SMOLLM2_135M, CONVERSATIONS, SECONDS)
            found.append({"share": share, "switch_seconds": interval} | each)
            print(
                f"another thread busy for {share:4.0%}, switch interval {1e3 * interval:3.1f} ms: "
                f"{each['dispatch_ms']:6.1f} ms per dispatch, "
                f"{each['tokens_per_second']:6.0f} tokens/s",
                flush=True,
            )
    device = jax.devices()[0]
    print(json.dumps({"device": device.device_kind, "jax": jax.__version__, "found": found}))


def measure(shape: PolicyShape, conversations: int, seconds: float) -> dict[str, Any]:
    """Tokens a second, and milliseconds per dispatch, while all conversations are played."""
    params = init_params(jax.random.key(0), shape, jnp.bfloat16)
    engine = Engine(shape, _sizes(conversations), NO_STOP, params)
    stop = threading.Event()
    players = [
        threading.Thread(target=_play, args=(engine, number, stop))
        for number in range(conversations)
    ]
    for each in players:
        each.start()
    while engine.stats.bursts < FIRST_BURSTS:
        engine.check()
        time.sleep(0.01)
    start, (tokens, bursts) = time.perf_counter(), _counts(engine)
    time.sleep(seconds)
    passed, (tokens_then, bursts_then) = time.perf_counter() - start, _counts(engine)
    stop.set()
    for each in players:
        each.join()
    engine.close()
    return {
        "tokens_per_second": (tokens_then - tokens) / passed,
        "dispatch_ms": 1e3 * passed / max(bursts_then - bursts, 1),
    }


def _counts(engine: Engine) -> tuple[int, int]:
    return engine.stats.sampled_tokens, engine.stats.bursts


def _play(engine: Engine, number: int, stop: threading.Event) -> None:
    """Conversations of an agent whose tools answer at once."""
    draw = np.random.default_rng(number)
    key = draw.integers(0, 2**31, 2, dtype=np.uint32)
    while not stop.is_set():
        conversation, new_tokens = engine.open(), PROMPT_TOKENS
        for _ in range(TURNS):
            ids = draw.integers(0, engine.vocab_size, new_tokens, dtype=np.int32)
            most = int(draw.integers(*REPLY_TOKENS))
            engine.reply(conversation, ids, most, Sampling(), key).result()
            new_tokens = int(draw.integers(*RESULT_TOKENS))
            if stop.is_set():
                break
        engine.end(conversation)


@contextlib.contextmanager
def _switching(interval: float) -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextlib.contextmanager
def _python_code(share: float) -> Iterator[None]:
    """Another thread runs Python code for this share of the time."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            end = time.perf_counter() + SLICE_SECONDS
            while time.perf_counter() < end:
                pass
            time.sleep(SLICE_SECONDS * (1 / share - 1))

    thread = threading.Thread(target=run)
    if share:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        if share:
            thread.join()


def _sizes(conversations: int) -> EngineShape:
    """As in configs/smollm2_135m.py."""
    return EngineShape(
        max_sequences=conversations,
        max_sequence_length=1024,
        decode_steps=8,
        prefill_tokens=(128, 512),
        prefill_rows=4,
        prefill_budget=4096,
        page_tokens=64,
        pages=conversations * 1024 // 64,
    )


if __name__ == "__main__":
    main()
