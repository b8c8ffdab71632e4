"""How fast does the engine write on this CPU, and how long does a swap of weights take?

    python -m benchmarks.generate_cpu [--quick]

Generation: 8 prompts of 64 tokens, 64 tokens written for each, float32, the whole call from the
first request to the last reply; a dense policy, 16 experts of which 4 are chosen, and 64 of which
8 are. Swap: `publish` of another set of 0.5 B weights on the same device while two replies are
written. --quick leaves out the swap, and all but three calls.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from concurrent.futures import Future

import jax
import jax.numpy as jnp
import numpy as np

from ale_jax.model.params import Params, count_params, init_params
from ale_jax.model.sampler import Sampling
from ale_jax.model.shape import PolicyShape
from ale_jax.rollout.engine import Engine
from ale_jax.rollout.engine_shape import EngineShape
from ale_jax.rollout.slots import Sampled

NO_STOP = (-1,)  # what is sampled is never negative


def peer_shape(experts: int, chosen: int, expert_width: int) -> PolicyShape:
    """The shape that the peers are measured at: 4 layers of width 256; 0 experts is dense."""
    return PolicyShape(
        vocab_size=2048,
        width=256,
        num_layers=4,
        num_heads=8,
        num_kv_heads=2,
        head_width=32,
        mlp_width=768,
        num_experts=experts,
        experts_per_token=chosen,
        expert_width=expert_width,
        dense_layers=(),
        norm_topk_prob=True,
        qk_norm=True,
        qkv_bias=False,
        rope_theta=1e6,
        llama3_rope=(),
        norm_eps=1e-6,
        tie_embeddings=True,
    )


PEER_SHAPES = {
    "dense": peer_shape(0, 0, 0),
    "experts_16": peer_shape(16, 4, 128),
    "experts_64": peer_shape(64, 8, 96),
}
HALF_BILLION = PolicyShape(
    vocab_size=151_936,
    width=896,
    num_layers=24,
    num_heads=14,
    num_kv_heads=2,
    head_width=64,
    mlp_width=4864,
    num_experts=0,
    experts_per_token=0,
    expert_width=0,
    dense_layers=(),
    norm_topk_prob=True,
    qk_norm=False,
    qkv_bias=True,
    rope_theta=1e6,
    llama3_rope=(),
    norm_eps=1e-6,
    tie_embeddings=True,
)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args(arguments).quick
    result = {"command": f"python -m benchmarks.generate_cpu {' '.join(arguments)}".strip()}
    for name, shape in PEER_SHAPES.items():
        params = init_params(jax.random.key(0), shape)
        rates = 512 / np.array(generation_seconds(shape, params, calls=3 if quick else 15))
        result[name] = {
            "tokens_per_second": round(statistics.median(rates)),
            "slowest": round(rates.min()),
            "fastest": round(rates.max()),
        }
        print(f"{name:11} {result[name]}", flush=True)
    result["swap"] = None if quick else swap(HALF_BILLION)
    print(json.dumps(result))
    return 0


def generation_seconds(
    shape: PolicyShape,
    params: Params,
    calls: int,
    batch: int = 8,
    prompt: int = 64,
    generated: int = 64,
) -> list[float]:
    """Seconds of each whole call, prompts included; one more before them compiles."""
    sizes = EngineShape(
        slots=batch,
        slot_tokens=prompt + generated,
        decode_steps=generated,
        prefill_tokens=(prompt,),
        prefill_rows=batch,
        prefill_budget=batch * prompt,
        page_tokens=16,
        pages=batch * -(-(prompt + generated) // 16),
        share_across_versions=False,
        int8_cache=False,
    )
    engine = Engine(shape, sizes, NO_STOP, params)
    draw, seconds = np.random.default_rng(0), []
    for call in range(calls + 1):
        prompts = draw.integers(3, shape.vocab_size, (batch, prompt))
        start = time.perf_counter()
        replies = _ask(engine, prompts, generated, call)
        written = [reply.result() for _, reply in replies]
        seconds.append(time.perf_counter() - start)
        assert all(len(each.ids) == generated for each in written)
        for conversation, _ in replies:
            engine.end(conversation)
    engine.close()
    return seconds[1:]


def swap(shape: PolicyShape) -> dict[str, float]:
    """Milliseconds of `publish` with two replies in flight, and what became of them."""
    old, new = (init_params(jax.random.key(n), shape, jnp.bfloat16) for n in (0, 1))
    sizes = EngineShape(
        slots=2,
        slot_tokens=64,
        decode_steps=1,
        prefill_tokens=(8,),
        prefill_rows=1,
        prefill_budget=16,
        page_tokens=16,
        pages=8,
        share_across_versions=False,
        int8_cache=False,
    )
    engine = Engine(shape, sizes, NO_STOP, old)
    replies = _ask(engine, np.arange(16).reshape(2, 8), 12, 0)
    while engine.stats.sampled_tokens < 8:
        time.sleep(0.001)
    start = time.perf_counter()
    engine.publish(new, 1)
    publish_ms = 1e3 * (time.perf_counter() - start)
    versions = [reply.result().version for _, reply in replies]
    engine.close()
    result = {
        "weights": count_params(shape)[0],
        "publish_ms": round(publish_ms, 3),
        "replies_lost": sum(len(each) != 12 for each in versions),
        "tokens_of_old_and_new": np.bincount(np.concatenate(versions), minlength=2).tolist(),
    }
    print(f"swap        {result}", flush=True)
    return result


def _ask(
    engine: Engine, prompts: np.ndarray, max_tokens: int, call: int
) -> list[tuple[int, Future[Sampled]]]:
    replies = []
    for row, ids in enumerate(prompts):
        conversation, key = engine.open(), np.array([call, row], np.uint32)
        reply = engine.reply(conversation, ids, max_tokens, Sampling(), key)
        replies.append((conversation, reply))
    return replies


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
