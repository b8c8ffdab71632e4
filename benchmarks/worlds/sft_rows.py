"""How fast are recorded trajectories read, and is each used once?

    python -m benchmarks.worlds.sft_rows [--quick] [--tokenizer=FOLDER]

Writes 10,000 trajectories (messages with tools, six calls each, of which one fails; with --quick
1,000), reads them as a warm start does, packs one epoch of them, and counts. The masks of all are
compared with those that follow from how they were made. The last line of stdout is a JSON object.
Exit code 1: a trajectory was lost or used twice, or a mask differs.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ale_jax.config.learn import Shape
from ale_jax.config.recorded import RecordedData
from ale_jax.config.worlds import WarmStartConfig
from ale_jax.data.mixing import end_of_epochs, mix
from ale_jax.data.packing import Sample
from ale_jax.gateway.api.tools import function
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from ale_jax.recorded.sets import Reader, RecordedSet, Terms
from ale_jax.system.warm_start import full_rows

CALLS, FAILED = 6, 2  # of a trajectory; which of them fails
SHAPE = Shape(microbatch_rows=8, pack_length=8192, chunks_per_pack=64)
COMMAND = {"type": "object", "properties": {"command": {"type": "string"}}}
TOOLS = [
    function("bash", "Runs a command in the shell.", COMMAND),
    function("finish", "Ends the task.", {"type": "object", "properties": {}}),
]
SENTENCE = "list the files of this folder and count lines in each report then sort them by size"


def trajectory(number: int) -> dict[str, Any]:
    """Returns a trajectory whose task no other one has."""
    draw = random.Random(number)

    def words(count: int) -> str:
        return " ".join(draw.choices(SENTENCE.split(), k=count))

    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You work in a shell. " + words(40)},
        {"role": "user", "content": f"Task {number}: {words(60)}."},
    ]
    for turn in range(CALLS):
        name, arguments = "bash", {"command": f"grep -c {words(3)} file{turn}.txt"}
        call = {"id": f"call_{turn}", "type": "function"}
        call["function"] = {"name": name, "arguments": json.dumps(arguments)}
        messages.append({"role": "assistant", "content": words(15), "tool_calls": [call]})
        result = {"role": "tool", "tool_call_id": f"call_{turn}", "content": words(80)}
        messages.append(result | {"is_error": turn == FAILED})
    messages.append({"role": "assistant", "content": f"It is {number}."})
    return {"messages": messages, "tools": TOOLS}


def measure(count: int, tokenizer: ChatTokenizer) -> dict[str, Any]:
    """Returns the figures of `count` trajectories."""
    with tempfile.TemporaryDirectory() as folder:
        with Path(folder, "traj.jsonl").open("w") as file:
            for number in range(count):
                file.write(json.dumps(trajectory(number)) + "\n")
        megabytes = Path(folder, "traj.jsonl").stat().st_size / 1e6
        warm = WarmStartConfig(mask_errors=True, epochs=1)
        data = RecordedData(name="made", files="traj.jsonl")
        start, busy = time.perf_counter(), time.process_time()
        found = Reader(data, Terms(warm, SHAPE, folder), tokenizer).read(lambda number: None)
        seconds, busy = time.perf_counter() - start, time.process_time() - busy
    used = Counter(_packed(found))
    masks = sum(map(_is_masked_as_made, found.learned))
    return {
        "trajectories": count,
        "megabytes": round(megabytes, 1),
        "tokens": sum(sample.num_tokens for sample in found.learned),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(busy, 1),
        "used_once": sum(times == 1 for times in used.values()),
        "dropped": dict(found.dropped),
        "masks_equal": masks,
    }


def trained_tokenizer() -> ChatTokenizer:
    """Returns a tokenizer that has learned from some trajectories."""
    told = (message for number in range(100) for message in trajectory(number)["messages"])
    learned = train_bpe(({"role": m["role"], "content": m["content"]} for m in told), 1024)
    return ChatTokenizer(learned)


def is_whole(figures: dict[str, Any]) -> bool:
    """Whether each trajectory was used once, or dropped, with the mask that it was made with."""
    kept = figures["trajectories"] - sum(figures["dropped"].values())
    return figures["used_once"] == kept and figures["masks_equal"] >= kept


def _packed(found: RecordedSet) -> Iterator[bytes]:
    """Yields the ids of each sample that one epoch's updates have."""
    samples = mix([found.learned], (1,), seed=0)
    last = end_of_epochs([len(found.learned)], (1,), 1)
    for batches in full_rows((next(samples) for _ in range(last)), 8, SHAPE):
        for batch in batches:
            for tokens_T, segment_T in zip(batch.tokens_BT, batch.segment_BT, strict=True):
                for number in range(1, segment_T.max() + 1):
                    yield tokens_T[segment_T == number].tobytes()


def _is_masked_as_made(sample: Sample) -> bool:
    """Whether all replies are chunks but the one that failed, which is context of the next."""
    sizes = np.array([len(turn.prompt_ids) for turn in sample.turns])
    return len(sample.turns) == CALLS and int(sizes[1:].argmax()) + 1 == FAILED


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--tokenizer", type=Path, help="one trained here if not given")
    arguments = parser.parse_args()
    given = arguments.tokenizer
    tokenizer = ChatTokenizer.load(given) if given else trained_tokenizer()
    figures = measure(1000 if arguments.quick else 10000, tokenizer)
    for name, value in figures.items():
        print(f"{name:14} {value}")
    print(json.dumps({"sft_rows": figures}))
    return int(not is_whole(figures))


if __name__ == "__main__":
    sys.exit(main())
