"""What do other threads cost the engine, with Python's switch interval and with that of a run?

    python -m benchmarks.engine_threads

The engine of configs/smollm2_135m.py, with random weights, writes for as many conversations as it
has rows. Meanwhile a thread runs Python code for none, half and all of the time. Prints a line for
each measurement, and JSON at the end. It is made for a GPU, and takes two minutes there.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from ale_jax.config.engine import Sampling
from ale_jax.configs import smollm2_135m
from ale_jax.engine.engine import Engine
from ale_jax.model.params import init_params
from ale_jax.model.weights.shape import policy_shape
from ale_jax.system.checks import checked_config
from ale_jax.system.interpreter import THREAD_SWITCH_SECONDS, switching
from benchmarks.weight_swap import NO_STOP, wait_for_decodes

TURNS = 8  # of a conversation, which then makes room for another one
PROMPT_TOKENS, RESULT_TOKENS, REPLY_TOKENS = 300, (40, 110), (16, 64)
SHARES = (0.0, 0.5, 1.0)  # of the time in which another thread runs Python code
SLICE_SECONDS = 0.004  # for which it does without a pause
FIRST = 5  # dispatches that are not timed: conversations begin, or the program is compiled
TIMED = 50


def main() -> None:
    config = checked_config(smollm2_135m.get_config().to_dict())
    policy = policy_shape(config, config.tokenizer.vocab_size)
    params = init_params(jax.random.key(0), policy, jnp.bfloat16)
    found = []
    with contextlib.closing(Engine(policy, config.engine, NO_STOP, params)) as engine:
        for share in SHARES:
            for interval in (sys.getswitchinterval(), THREAD_SWITCH_SECONDS):
                with switching(interval), _python_code(share):
                    each = measure(engine, config.engine.max_sequences, TIMED)
                found.append({"share": share, "switch_seconds": interval} | each)
                print(
                    f"another thread busy for {share:4.0%}, switch interval {1e3 * interval:.1f} "
                    f"ms: {each['dispatch_ms']:.1f} ms per dispatch, "
                    f"{each['tokens_per_second']:.0f} tokens/s",
                    flush=True,
                )
    device = jax.devices()[0].device_kind
    print(json.dumps({"device": device, "jax": jax.__version__, "found": found}))


def measure(engine: Engine, conversations: int, dispatches: int) -> dict[str, float]:
    """Milliseconds per dispatch, and tokens a second, while all conversations are played."""
    stop, stats = threading.Event(), engine.stats
    players = [
        threading.Thread(target=_play, args=(engine, number, stop))
        for number in range(conversations)
    ]
    first = stats.decode_dispatches + FIRST
    for each in players:
        each.start()
    start, tokens = wait_for_decodes(engine, first), stats.sampled_tokens
    seconds = wait_for_decodes(engine, first + dispatches) - start
    tokens = stats.sampled_tokens - tokens
    stop.set()
    for each in players:
        each.join()
    return {"dispatch_ms": 1e3 * seconds / dispatches, "tokens_per_second": tokens / seconds}


def _play(engine: Engine, number: int, stop: threading.Event) -> None:
    """Conversations of an agent whose tools answer at once."""
    draw = np.random.default_rng(number)
    key = np.array([0, number], np.uint32)
    while not stop.is_set():
        conversation, new_tokens = engine.open(), PROMPT_TOKENS
        for _ in range(TURNS):
            ids = draw.integers(0, engine.vocab_size, new_tokens)
            most = int(draw.integers(*REPLY_TOKENS))
            engine.reply(conversation, ids, most, Sampling(), key).result()
            new_tokens = int(draw.integers(*RESULT_TOKENS))
            if stop.is_set():
                break
        engine.end(conversation)


@contextlib.contextmanager
def _python_code(share: float) -> Iterator[None]:
    """Another thread runs Python code for this share of the time."""
    if not share:
        yield
        return
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            end = time.perf_counter() + SLICE_SECONDS
            while time.perf_counter() < end:
                pass
            time.sleep(SLICE_SECONDS * (1 / share - 1))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


if __name__ == "__main__":
    main()
