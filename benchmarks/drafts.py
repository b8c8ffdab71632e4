"""Is the engine faster with drafts (`engine.speculative_tokens`), and how many of them are right?

    python -m benchmarks.drafts [--quick] [--drafted=4]

The policy and the conversations of `notebooks/recorded`: each reply is sampled again, and what the
environment said follows it as it was recorded. Then the same with random weights, which do not
repeat what was said. All is played with and without drafts in turn, 1, 4 and 16 conversations at
once. Prints medians of the rounds, of which the ratios are with drafts over without, and as the
last line one JSON object. While other work goes on, the ratio of tokens in a CPU second tells more.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.engine import EngineShape, Sampling
from ale_jax.engine.engine import Engine
from ale_jax.model.params import Params, init_params
from ale_jax.model.sharding import make_mesh, param_shardings
from ale_jax.model.weights.shape import policy_shape
from ale_jax.monitor.run_files import CONFIG_FILE
from ale_jax.system.allocator import use_tcmalloc
from ale_jax.system.checks import stored_config
from ale_jax.system.states import newest_state

RECORDED = Path("notebooks/recorded")
REPLY_TOKENS = 64
AT_ONCE = (1, 4, 16)
PARTS = 4  # of the conversations; a round plays one

Conversation = list[np.ndarray]  # what the policy reads in each turn


class Recorded(NamedTuple):
    """What was recorded of a run."""

    shape: PolicyShape
    engine: EngineShape
    stop_ids: tuple[int, ...]
    params: Params
    mesh: Mesh
    conversations: list[Conversation]

    @classmethod
    def read(cls) -> Recorded:
        with tempfile.TemporaryDirectory() as folder:
            run = Path(shutil.copytree(RECORDED, Path(folder) / "run"))
            config = stored_config(run / CONFIG_FILE)
            newest = newest_state(config, run)
        shape = policy_shape(config, newest.tokenizer.vocab_size)
        rows = map(json.loads, (RECORDED / "trajectories.jsonl").read_text().splitlines())
        conversations = [
            [np.array(turn["each"]["prompt_ids"], np.int32) for turn in row["turns"]]
            for row in rows
        ]
        mesh, stop_ids = make_mesh(config.mesh), newest.tokenizer.stop_ids
        return cls(shape, config.engine, stop_ids, newest.state.params, mesh, conversations)


@dataclasses.dataclass(frozen=True)
class Round:
    """acceptance: share of the drafted tokens that were right. tokens_per_pass: of all
    conversations."""

    tokens_per_second: float
    tokens_per_cpu_second: float
    acceptance: float
    tokens_per_pass: float


def main(arguments: list[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round of few conversations")
    parser.add_argument("--drafted", type=int, default=4)
    options = parser.parse_args(arguments)
    recorded, rounds = Recorded.read(), 1 if options.quick else 20
    random = jax.device_put(
        init_params(jax.random.key(0), recorded.shape),
        param_shardings(recorded.shape, recorded.mesh),
    )
    texts = {"recorded": recorded, "random": recorded._replace(params=random)}
    found = {}
    for text, each in texts.items():
        for at_once in AT_ONCE[: 1 if options.quick else None]:
            name = f"{text}, {at_once} at once"
            found[name] = compare(each, at_once, options.drafted, rounds)
            print(f"{name:22}", *(f"{key} {value:<8.3g}" for key, value in found[name].items()))
    print(json.dumps({"benchmark": "drafts", "drafted": options.drafted, **found}))
    return 0


def compare(recorded: Recorded, at_once: int, drafted: int, rounds: int) -> dict[str, float]:
    """Plays a part of the conversations without and with drafts, `rounds` times in turn."""
    played: dict[int, list[Round]] = {0: [], drafted: []}
    with contextlib.ExitStack() as stack:
        engines = {k: stack.enter_context(_engine(recorded, at_once, k)) for k in played}
        for engine in engines.values():
            play_all(engine, recorded.conversations[: 2 * at_once], at_once)  # compiles
        for number in range(rounds):
            part = recorded.conversations[number % PARTS :: PARTS]
            for k, engine in engines.items():
                played[k].append(play_all(engine, part, at_once))
    without, having = played.values()
    return {
        "tokens_per_second": _median(each.tokens_per_second for each in without),
        "ratio": _ratio(having, without, "tokens_per_second"),
        "cpu_ratio": _ratio(having, without, "tokens_per_cpu_second"),
        "acceptance": _median(each.acceptance for each in having),
        "tokens_per_pass": _ratio(having, without, "tokens_per_pass"),
    }


def _ratio(having: list[Round], without: list[Round], name: str) -> float:
    """The median over rounds."""
    pairs = zip(having, without, strict=True)
    return _median(getattr(one, name) / getattr(other, name) for one, other in pairs)


def _median(figures: Iterable[float]) -> float:
    return statistics.median(list(figures))


@contextlib.contextmanager
def _engine(recorded: Recorded, at_once: int, drafted: int) -> Iterator[Engine]:
    sizes = dataclasses.replace(
        recorded.engine,
        max_sequences=at_once,
        pages=at_once * recorded.engine.pages_per_sequence,
        speculative_tokens=drafted,
    )
    engine = Engine(recorded.shape, sizes, recorded.stop_ids, recorded.params, recorded.mesh)
    with contextlib.closing(engine):
        yield engine


def play_all(engine: Engine, conversations: list[Conversation], at_once: int) -> Round:
    """Plays the conversations, so many at once."""
    before, start, cpu = dataclasses.replace(engine.stats), time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(partial(_play, engine), itertools.count(), conversations))
    seconds, cpu, after = time.perf_counter() - start, time.process_time() - cpu, engine.stats
    tokens = after.sampled_tokens - before.sampled_tokens
    drafted = after.drafted_tokens - before.drafted_tokens
    accepted = after.accepted_tokens - before.accepted_tokens
    passes = after.decode_passes - before.decode_passes
    return Round(tokens / seconds, tokens / cpu, accepted / max(drafted, 1), tokens / passes)


def _play(engine: Engine, number: int, turns: Conversation) -> None:
    conversation, key = engine.open(), np.array([0, number], np.uint32)
    for ids in turns:
        reply = engine.reply(conversation, ids, REPLY_TOKENS, Sampling(), key).result()
        if reply.stop == "context_full":
            break
    engine.end(conversation)


if __name__ == "__main__":
    use_tcmalloc()  # as `ale-jax` does
    sys.exit(main(sys.argv[1:]))
