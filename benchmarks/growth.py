"""How does time grow? Each part at growing sizes, with the exponent of its growth.

    python -m benchmarks.growth [--parts=experts,rows,...] [--points=2] [--calls=5]

Of a training step (a forward and backward pass, and an update): rows of 256 tokens, tokens of one
row, experts of which each token has four. Of the engine: conversations at once, and a
conversation's length, for reading it and for decoding behind it. Of host code: packing
trajectories, by their number and by their tokens.

Where the exponent between two sizes is above 1.15, a line says so. Of `tokens`, `reading` and
`decoding` that is expected in the end: a token attends to all before it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.engine import EngineShape, Sampling
from ale_jax.config.hardware import MeshShape
from ale_jax.config.learn import Shape
from ale_jax.config.model import ModelConfig
from ale_jax.config.optimizer import OptimizerHypers
from ale_jax.data.packing import demonstration, pack_all
from ale_jax.engine.engine import Engine
from ale_jax.learn.state import init_state, make_optimizer
from ale_jax.learn.step import ModelSpec, make_loss, make_train_step
from ale_jax.model.params import init_params
from ale_jax.model.sharding import make_mesh
from ale_jax.system.allocator import use_tcmalloc
from benchmarks.choices import some_of
from benchmarks.full_rows import GRPO, full_batch

ABOVE_LINEAR = 1.15
VOCABULARY, ROW_TOKENS, PROMPT_TOKENS = 1024, 256, 16
READ_TOKENS, WRITTEN_TOKENS, PAGE_TOKENS = 256, 32, 64
MOST_CALLS = 9
MARGIN = (MOST_CALLS + 2) * (1 + WRITTEN_TOKENS)  # tokens behind a long conversation
NO_STOP = (-1,)  # never sampled, as ids are not negative
ADAMW = OptimizerHypers("adamw", 1e-6, 1e-6, b1=0.9, b2=0.95, weight_decay=0.0, clip_norm=1.0)

Call = Callable[[], None]


class Part(NamedTuple):
    """prepare: (size) -> a context with the call to be timed, which has run once."""

    sizes: tuple[int, ...]
    prepare: Callable[[int], contextlib.AbstractContextManager[Call]]


class Point(NamedTuple):
    """exponent: of the growth from the size before; None for the first one."""

    size: int
    seconds: float
    exponent: float | None


def curve(part: Part, calls: int) -> Iterator[Point]:
    """Yields the median of so many calls at each size."""
    before: Point | None = None
    for size in part.sizes:
        with part.prepare(size) as call:
            seconds = statistics.median(_seconds_of(call) for _ in range(calls))
        exponent = None
        if before is not None:
            exponent = math.log(seconds / before.seconds) / math.log(size / before.size)
        before = Point(size, seconds, exponent)
        yield before


def line(name: str, point: Point) -> str:
    """Returns what is printed of a point."""
    said = f"{name:14} {point.size:7} {1e3 * point.seconds:10.2f} ms"
    if point.exponent is None:
        return said
    mark = "   SUPER-LINEAR" if point.exponent > ABOVE_LINEAR else ""
    return f"{said}   exponent {point.exponent:5.2f}{mark}"


def _seconds_of(call: Call) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def policy_of(experts: int = 0) -> PolicyShape:
    return ModelConfig(
        width=128,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_width=32,
        mlp_width=384,
        num_experts=experts,
        experts_per_token=4 if experts else 1,
        expert_width=96,
        max_positions=65_536,
        tie_embeddings=True,
    ).policy_shape(VOCABULARY)


@contextlib.contextmanager
def _step(policy: PolicyShape, rows: int, tokens: int) -> Iterator[Call]:
    mesh = make_mesh(MeshShape(), jax.devices()[:1])  # as many rows as sizes, also one
    optimizer = make_optimizer(ADAMW, policy)
    step = make_train_step(ModelSpec(policy, mesh), optimizer, make_loss(GRPO, chunks_per_pack=1))
    state = init_state(jax.random.key(0), policy, optimizer, mesh)
    batches = [full_batch(VOCABULARY, rows, tokens, PROMPT_TOKENS)]

    def call() -> None:
        nonlocal state
        state, sums, _ = step(state, batches, rows * tokens)
        jax.block_until_ready((state, sums))

    call()
    yield call


class Talk:
    """An engine with conversations of so many tokens, and room for replies behind them."""

    def __init__(self, conversations: int, tokens: int):
        length, policy = tokens + MARGIN, policy_of()
        sizes = EngineShape(
            max_sequences=conversations,
            max_sequence_length=length,
            decode_steps=WRITTEN_TOKENS,
            prefill_tokens=(PROMPT_TOKENS, READ_TOKENS),
            prefill_rows=1,
            # All prompts at once: a dispatch costs as much whether few decode in it or all.
            prefill_budget=max(4 * READ_TOKENS, conversations * PROMPT_TOKENS),
            page_tokens=PAGE_TOKENS,
            pages=conversations * -(-length // PAGE_TOKENS),
        )
        params = init_params(jax.random.key(0), policy)
        self._engine, self._draw = Engine(policy, sizes, NO_STOP, params), np.random.default_rng(0)
        self._opened = [self._engine.open() for _ in range(conversations)]

    def say(self, told: int, written: int) -> None:
        """Has all conversations reply at once to so many tokens."""
        prompts = self._draw.integers(0, VOCABULARY, (len(self._opened), told))
        # Or a dispatch may begin before all have asked: the others then need one of their own.
        with self._engine._wake:
            replies = [
                self._engine.reply(
                    number, ids, written, Sampling(), np.array([0, number], np.uint32)
                )
                for number, ids in zip(self._opened, prompts, strict=True)
            ]
        assert all(len(reply.result().ids) == written for reply in replies)

    def anew(self, told: int, written: int) -> None:
        """The same in new conversations."""
        for number in self._opened:
            self._engine.end(number)
        self._opened = [self._engine.open() for _ in self._opened]
        self.say(told, written)

    def close(self) -> None:
        self._engine.close()


@contextlib.contextmanager
def _conversations(count: int) -> Iterator[Call]:
    with contextlib.closing(Talk(count, PROMPT_TOKENS + WRITTEN_TOKENS)) as talk:
        for _ in range(2):  # compiles what ending a conversation needs, too
            talk.anew(PROMPT_TOKENS, WRITTEN_TOKENS)
        yield lambda: talk.anew(PROMPT_TOKENS, WRITTEN_TOKENS)


@contextlib.contextmanager
def _reading(tokens: int) -> Iterator[Call]:
    with contextlib.closing(Talk(1, tokens)) as talk:
        for _ in range(2):
            talk.anew(tokens, 1)
        yield lambda: talk.anew(tokens, 1)


@contextlib.contextmanager
def _decoding(tokens: int) -> Iterator[Call]:
    with contextlib.closing(Talk(1, tokens)) as talk:
        talk.say(tokens, 1)
        talk.say(1, WRITTEN_TOKENS)
        yield lambda: talk.say(1, WRITTEN_TOKENS)


@contextlib.contextmanager
def _packing(trajectories: int, turns: int) -> Iterator[Call]:
    turn = np.arange(16), np.arange(48)  # read and written
    samples = [demonstration([turn] * turns) for _ in range(trajectories)]
    shape = Shape(8, turns * 64, turns)

    def call() -> None:
        assert pack_all(samples, shape)

    yield call


PARTS = {
    "rows": Part((1, 4, 16, 64), lambda n: _step(policy_of(), n, ROW_TOKENS)),
    "tokens": Part((256, 1024, 4096, 8192), lambda n: _step(policy_of(), 1, n)),
    "experts": Part((4, 16, 64, 256), lambda n: _step(policy_of(n), 4, ROW_TOKENS)),
    "conversations": Part((1, 4, 16, 64, 256), _conversations),
    "reading": Part((512, 2048, 8192, 32_768), _reading),
    "decoding": Part((512, 2048, 8192, 32_768), _decoding),
    "trajectories": Part((8, 64, 512, 4096), lambda n: _packing(n, 4)),
    "turns": Part((1, 8, 64, 512), lambda n: _packing(8, n)),
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", type=some_of(PARTS), default=list(PARTS))
    parser.add_argument("--points", type=int, default=None, help="only the first sizes")
    parser.add_argument("--calls", type=int, default=5, help=f"at each size, up to {MOST_CALLS}")
    options = parser.parse_args(arguments)
    if not 1 <= options.calls <= MOST_CALLS:
        parser.error(f"--calls {options.calls} must be from 1 to {MOST_CALLS}")
    found: dict[str, list[Point]] = {}
    for name in options.parts:
        part, found[name] = PARTS[name], []
        for point in curve(part._replace(sizes=part.sizes[: options.points]), options.calls):
            found[name].append(point)
            print(line(name, point), flush=True)
    print(json.dumps({"benchmark": "growth", "curves": found}))
    return 0


if __name__ == "__main__":
    use_tcmalloc()  # as `ale-jax` does
    sys.exit(main(sys.argv[1:]))
