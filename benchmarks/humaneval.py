"""HumanEval, greedy pass@1: real weights in our engine, and their programs in our sandbox.

    python -m benchmarks.humaneval MODEL PROBLEMS [--tasks=N] [--keys=16] [--runtime=auto]

MODEL is a .gguf file or a transformers folder; PROBLEMS is HumanEval.jsonl.gz. The prompt is that
of EvalPlus: the model's chat template, and the start of the answer.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import secrets
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np

from ale_jax.config.engine import EngineShape, Sampling
from ale_jax.engine.engine import Engine
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.model.weights.load import load_params, open_checkpoint
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.spec import SandboxSpec

QUESTION = (
    "Please provide a self-contained Python script that solves the following problem in a markdown "
    "code block:\n```python\n{}\n```"
)
ANSWER = (
    "Below is a Python script with a self-contained function that solves the problem and passes "
    "corresponding tests:\n```python\n"
)
FENCE = "```"
MAX_TOKENS, SLOT_TOKENS = 512, 1280
SPEC = SandboxSpec(memory_mb=512, command_seconds=20.0)
GREEDY = Sampling(temperature=0.0)
Problem = dict[str, str]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("problems", type=Path)
    parser.add_argument("--tasks", type=int, default=None, help="only the first N")
    parser.add_argument("--keys", type=int, default=16)
    parser.add_argument("--runtime", default="auto")
    options = parser.parse_args(arguments)
    problems = read_problems(options.problems)[: options.tasks]
    began = time.monotonic()
    programs = write_programs(options.model, problems, options.keys)
    wrote = time.monotonic()
    passed = judge(problems, programs, options.runtime)
    for problem, ok in zip(problems, passed, strict=True):
        print(f"{problem['task_id']:16} {'passed' if ok else 'failed'}")
    result = {
        "benchmark": "humaneval",
        "command": " ".join(["python -m benchmarks.humaneval", *arguments]),
        "model": options.model.name,
        "tasks": len(problems),
        "passed": sum(passed),
        "pass_at_1": round(sum(passed) / len(problems), 4),
        "writing_seconds": round(wrote - began, 1),
        "hardware": f"{os.cpu_count()} CPU cores, {platform.machine()}",
        "versions": {name: version(name) for name in ("jax", "jaxlib", "numpy")},
    }
    print(json.dumps(result))
    return 0


def read_problems(path: Path) -> list[Problem]:
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def write_programs(model: Path, problems: Sequence[Problem], keys: int) -> list[str]:
    """The model's answer to each problem, up to the end of its code block."""
    checkpoint = open_checkpoint(model)
    tokenizer = ChatTokenizer.load(model)
    (fence,) = _ids(tokenizer, FENCE)
    stop_ids = (*tokenizer.stop_ids, int(fence))
    engine = Engine(checkpoint.shape, _engine_shape(keys), stop_ids, load_params(checkpoint))
    key = np.asarray(jax.random.key_data(jax.random.key(0)))  # unused, as decoding is greedy

    def answer(problem: Problem) -> str:
        message = {"role": "user", "content": QUESTION.format(problem["prompt"].strip())}
        prompt = tokenizer.prompt_ids([message], first=True)
        conversation = engine.open()
        ids = np.concatenate([prompt, _ids(tokenizer, ANSWER)])
        reply = engine.reply(conversation, ids, MAX_TOKENS, GREEDY, key).result()
        engine.end(conversation)
        return tokenizer.decode(reply.ids).partition(FENCE)[0]

    try:
        with ThreadPoolExecutor(keys) as pool:
            return list(pool.map(answer, problems))
    finally:
        engine.close()


def _ids(tokenizer: ChatTokenizer, text: str) -> np.ndarray:
    """The ids of text within a reply, without the end of the turn."""
    return tokenizer.reply_ids(text)[:-1]


def _engine_shape(keys: int) -> EngineShape:
    return EngineShape(
        keys,
        SLOT_TOKENS,
        decode_steps=8,
        prefill_tokens=(256, 512),
        prefill_rows=1,
        prefill_budget=512,
        page_tokens=64,
        pages=keys * -(-SLOT_TOKENS // 64),
        share_across_versions=False,
        int8_cache=False,
        weights="same",
    )


def judge(problems: Sequence[Problem], programs: Sequence[str], runtime: str) -> list[bool]:
    """Whether each program passes its problem's tests, in a sandbox that is reset before it."""
    with pick_runtime(runtime, SPEC).start(SPEC, {"run": "benchmark"}) as box:
        passed = []
        for problem, program in zip(problems, programs, strict=True):
            box.reset()
            word = secrets.token_hex(8)  # printed only if all tests pass
            check = f"check({problem['entry_point']})\nprint({word!r})\n"
            script = "\n".join([problem["prompt"], program, problem["test"], check])
            box.write({"program.py": script.encode()})
            passed.append(box.run("python3 program.py").output.endswith(f"{word}\n"))
        return passed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
