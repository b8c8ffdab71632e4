"""How much slower is the engine with half of the pages, and how many conversations go on at once?

    python -m benchmarks.preemption [--quick]

Twice as many agents as the quickstart's engine has rows play conversations of eight turns with the
quickstart's policy, with random weights, and pause between two turns as for a sandbox. Groups of
four share their prompt. All of it is done with the pages of the quickstart, which are enough for
all rows at full length, and with half of them, round by round. Every reply must be the same in
both. Prints a table and, as the last line, one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import json
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import jax
import numpy as np

from ale_jax.config.engine import Sampling
from ale_jax.configs import quickstart
from ale_jax.engine.engine import Engine
from ale_jax.model.params import init_params
from ale_jax.model.weights.shape import policy_shape
from ale_jax.system.checks import checked_config

NO_STOP = (-1,)  # never sampled, as ids are not negative
PROMPT_TOKENS, TURNS, GROUP = 110, 8, 4
PAUSE_S = 0.15  # on average; at most twice as long
FIRST_ID = 10  # lower ones mean something to a tokenizer
SHARES = {"all pages": 1.0, "half of them": 0.5}


@dataclasses.dataclass(frozen=True)
class Round:
    """conversations: that had begun and not ended, on average over the time. digest: of all ids and
    log-probabilities."""

    tokens_per_second: float
    conversations: float
    preemptions: int
    digest: str


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round of few agents")
    quick = parser.parse_args(arguments).quick
    rounds, agents = (1, 8) if quick else (5, 40)
    config = checked_config(quickstart.get_config().to_dict())
    policy = policy_shape(config, config.tokenizer.vocab_size)
    params = init_params(jax.random.key(0), policy)
    played: dict[str, list[Round]] = {name: [] for name in SHARES}
    with contextlib.ExitStack() as stack:
        engines = {}
        for name, share in SHARES.items():
            shape = dataclasses.replace(config.engine, pages=int(share * config.engine.pages))
            engines[name] = Engine(policy, shape, NO_STOP, params)
            stack.callback(engines[name].close)
            play_all(engines[name], 2, 2)  # compiles
        for _ in range(rounds):
            for name, engine in engines.items():
                played[name].append(play_all(engine, agents, 2 * agents))
    figures = {name: summary(each) for name, each in played.items()}
    for name, row in figures.items():
        print(f"{name:14}", *(f"{key} {value:<10}" for key, value in row.items()))
    same = len({each.digest for each in chain(*played.values())}) == 1
    print(json.dumps({"benchmark": "preemption", "same_replies": same, **figures}))
    return 0 if same else 1


def summary(rounds: list[Round]) -> dict[str, Any]:
    """Medians of the rounds."""
    speed = [round(each.tokens_per_second) for each in rounds]
    return {
        "tokens_per_second": statistics.median(speed),
        "lowest": min(speed),
        "highest": max(speed),
        "conversations": round(statistics.median(each.conversations for each in rounds), 1),
        "preemptions": statistics.median(each.preemptions for each in rounds),
    }


def play_all(engine: Engine, agents: int, conversations: int) -> Round:
    before = dataclasses.replace(engine.stats)
    start = time.monotonic()
    with ThreadPoolExecutor(agents) as pool:
        played = list(pool.map(lambda number: _play(engine, number), range(conversations)))
    seconds = time.monotonic() - start
    digest = hashlib.sha256(b"".join(replies for replies, _ in played)).hexdigest()
    return Round(
        (engine.stats.sampled_tokens - before.sampled_tokens) / seconds,
        sum(in_progress for _, in_progress in played) / seconds,
        engine.stats.preemptions - before.preemptions,
        digest,
    )


def _play(engine: Engine, number: int) -> tuple[bytes, float]:
    """The replies to one agent, and the seconds from the first one on."""
    conversation, draw = engine.open(), np.random.default_rng((1, number))
    key, replies, begun = np.array([0, number], np.uint32), [], 0.0
    for turn in range(TURNS):
        if turn:
            time.sleep(2 * PAUSE_S * draw.random())
        of_group = np.random.default_rng((0, number // GROUP))
        from_whom, count = (draw, int(draw.integers(8, 20))) if turn else (of_group, PROMPT_TOKENS)
        ids = from_whom.integers(FIRST_ID, engine.vocab_size, count)
        most = int(draw.integers(8, 24))
        reply = engine.reply(conversation, ids, most, Sampling(), key).result()
        begun = begun or time.monotonic()
        replies += [reply.ids.tobytes(), reply.logp_plain.tobytes()]
    engine.end(conversation)
    return b"".join(replies), time.monotonic() - begun


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
